"""`lucius provision`: opens what the settings name, and has it checked or created."""
