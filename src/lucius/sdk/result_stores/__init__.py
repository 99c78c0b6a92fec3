"""Result stores: where a service keeps its RESULTs until the orchestrator has them, in a SQLite file or as
objects."""
