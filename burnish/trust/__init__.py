"""Never slower, never wrong: each compiled graph is judged before it is used, watched while it is, and taken back."""
