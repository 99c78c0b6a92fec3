"""What Azure adds to a process: an identity, and settings and protocols from App Configuration."""
