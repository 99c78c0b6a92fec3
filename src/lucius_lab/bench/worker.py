"""One external HTTP worker of `lucius bench`: leases, acknowledges, answers, and does nothing in between."""

import sys

import uvloop

from lucius_lab.bench.load import work


def main(arguments: list[str]) -> None:
    port, service = arguments
    uvloop.run(work("127.0.0.1", int(port), service, connections=4))


if __name__ == "__main__":
    main(sys.argv[1:])
