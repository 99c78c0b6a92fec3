"""`lucius bench`: throughput and latency of every deployment, measured over real HTTP on this machine."""
