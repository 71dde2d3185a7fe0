"""The HTML report of `burnish bench`: one file, drawn here, no network needed."""
