"""The bus over NATS JetStream: `bus` is the adapter, `server` runs a NATS server for development."""
