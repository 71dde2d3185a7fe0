"""Never slower, never wrong: each compiled graph is compared and raced before use, sampled during use, and rolled back
if wrong."""
