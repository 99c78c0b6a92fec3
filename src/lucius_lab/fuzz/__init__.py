"""The fuzzer: inputs that are almost right, thrown at a server in this process, and each answer held
against the rules."""
