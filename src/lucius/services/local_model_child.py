"""The process in which the small local language model lives.

In, as arguments: the file of the model, and how many threads it gets. Out, on standard output: the path of
the socket on which it speaks the OpenAI protocol, in a folder that no other user may enter. It ends with its
standard input, so that it never outlives the process that started it. Run as a file of its own; knows nothing
of Lucius.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any, Final

CONTEXT_TOKENS: Final = 4096
ANSWER_TOKENS_MAX: Final = 384


def main(model_path: str, threads: int) -> None:
    import xllamacpp  # type: ignore[import-not-found, unused-ignore]

    with tempfile.TemporaryDirectory(prefix="lucius-model-") as folder:
        socket = Path(folder) / "socket.sock"
        params: Any = xllamacpp.CommonParams()
        params.model.path = model_path
        params.n_ctx = CONTEXT_TOKENS
        params.n_predict = ANSWER_TOKENS_MAX
        params.n_parallel = 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.sampling.temp = 0.0
        params.hostnames = [str(socket)]
        params.ui = False
        params.verbosity = 0
        server = xllamacpp.Server(params)
        sys.stdout.write(f"{socket}\n")
        sys.stdout.flush()
        sys.stdin.read()
        del server


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
