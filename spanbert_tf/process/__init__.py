"""What this process shows while it works, and which signals end it."""
