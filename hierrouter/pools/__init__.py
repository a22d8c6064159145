"""Who may be called, on which server, and at what price."""
