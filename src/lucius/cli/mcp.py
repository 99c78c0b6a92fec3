"""`lucius mcp`: the tools for agents, over stdio or HTTP on this machine."""

import os
import secrets
import time
from typing import Annotated, Final

import typer

import lucius
from lucius.cli.context import PROFILE_ASKED, Output, own_config_path
from lucius.cli.exits import EXIT_INTERRUPTED
from lucius.cli.http import EXIT_FAILED, EXIT_USAGE
from lucius.cli.profiles import chosen_target

LOOPBACK: Final = "127.0.0.1"
PORT: Final = 8421


def mcp(
    over_http: Annotated[
        bool, typer.Option("--http", help="Serve HTTP on 127.0.0.1 instead of stdin and stdout.")
    ] = False,
    port: Annotated[int, typer.Option(min=1, max=65535, help="With --http: the port.")] = PORT,
) -> None:
    """Serve tools for agents over the Model Context Protocol.

    Over stdio every call has the key of LUCIUS_API_KEY or the profile. Over HTTP each caller brings a key of
    its own, as `Authorization: Bearer …`. Effects come only after a preview of the same call.
    """
    out = Output(as_json=False)
    target = chosen_target(os.environ, PROFILE_ASKED.get(), path=own_config_path(), warn=out.say)
    if isinstance(target, str):
        raise typer.BadParameter(target)
    try:
        from lucius.mcp import CertifyRuns, ToolSettings, make_server
    except ModuleNotFoundError as fault:
        if (fault.name or "").partition(".")[0] not in ("mcp", "pydantic"):
            raise
        out.say("error: The tools need the package mcp: install lucius[mcp].")
        raise typer.Exit(EXIT_USAGE) from None
    settings = ToolSettings(
        url=target.url,
        api_key=None if over_http else target.api_key or "",
        secret=secrets.token_bytes(32),
        now_seconds=time.time,
        # It takes room on this machine: that of the user who started us, not of each caller.
        certify_runs=None if over_http else CertifyRuns(os.environ),
    )
    server = make_server(settings, version=lucius.__version__)
    try:
        if over_http:
            _check_free(port, out)
            out.say(f"Tools of {target.url} at http://{LOOPBACK}:{port}/mcp")
            server.run("streamable-http", host=LOOPBACK, port=port, json_response=True)
        else:
            server.run("stdio")
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _check_free(port: int, out: Output) -> None:
    """The server of the tools would end with words and a code of its own."""
    from lucius.cli.serving import bind

    try:
        bind(LOOPBACK, port).close()
    except OSError as fault:
        out.say(f"Cannot listen on {LOOPBACK}, port {port}: {fault.strerror}. Try another --port.")
        raise typer.Exit(EXIT_FAILED) from None
