"""A Jupyter Kernel Gateway for one host; the arguments of main() are `--listen ADDRESS [OPTION…]`.

ADDRESS is the path of a Unix socket or 127.0.0.1:PORT. The token comes in $IPYBOX_GATEWAY_TOKEN,
which kernels do not inherit. Other options are the gateway's own.
"""
from __future__ import annotations

import os
import sys
from typing import Any

try:
    from kernel_gateway.gatewayapp import KernelGatewayApp
    from tornado.httpserver import HTTPServer
    from tornado.netutil import bind_sockets, bind_unix_socket
except ImportError as error:
    sys.exit(f"ipybox: {error}: the kernel's Python needs jupyter_kernel_gateway")


def main(arguments: list[str]) -> Any:
    if len(arguments) < 2 or arguments[0] != "--listen":
        sys.exit(__doc__)
    address = arguments[1]
    app = KernelGatewayApp.instance()
    app.auth_token = os.environ.pop("IPYBOX_GATEWAY_TOKEN", "")

    def listen() -> None:
        app.http_server = HTTPServer(app.web_app)
        if address.startswith("/"):
            app.http_server.add_socket(bind_unix_socket(address, mode=0o600))
        else:
            host, _, port = address.rpartition(":")
            app.http_server.add_sockets(bind_sockets(int(port), host))

    app.init_http_server = listen
    app.initialize(arguments[2:])
    app.start()
