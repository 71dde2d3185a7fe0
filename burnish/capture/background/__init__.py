"""Background compiling: frames deferred to later, and the thread that compiles them."""
