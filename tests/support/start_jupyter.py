"""A Jupyter server on a port of its own choice: start_jupyter.py KIND [--cert FILE --key FILE] [OPTION…]

KIND is server (jupyter_server), gateway (jupyter_kernel_gateway) or enterprise
(jupyter_enterprise_gateway). The first line printed is the port; OPTION… are the server's own.
"""
import asyncio
import sys

from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop
from tornado.netutil import bind_sockets


def serve(app, tls):
    server = HTTPServer(app.web_app, ssl_options=tls)
    sockets = bind_sockets(int(port), "127.0.0.1")
    server.add_sockets(sockets)
    if kind != "server":  # there it is a property
        app.http_server = server
    print(sockets[0].getsockname()[1], flush=True)


def take(arguments, name, default=None):
    if name not in arguments:
        return default
    at = arguments.index(name)
    value = arguments[at + 1]
    del arguments[at : at + 2]
    return value


kind, *arguments = sys.argv[1:]
port = take(arguments, "--port", "0")
cert, key = take(arguments, "--cert"), take(arguments, "--key")
tls = {"certfile": cert, "keyfile": key} if cert else None
asyncio.set_event_loop(asyncio.new_event_loop())
if kind == "server":
    from jupyter_server.serverapp import ServerApp

    app = ServerApp.instance()
    app.initialize(argv=["--ServerApp.allow_root=True", "--log-level=WARN", *arguments],
                   new_httpserver=False, find_extensions=False)
    serve(app, tls)
    IOLoop.current().start()
else:
    if kind == "gateway":
        from kernel_gateway.gatewayapp import KernelGatewayApp as App
    else:
        from enterprise_gateway.enterprisegatewayapp import EnterpriseGatewayApp as App
    App.init_http_server = App.init_httpserver = lambda self: serve(self, tls)
    app = App.instance()
    app.initialize(["--log-level=WARN", *arguments])
    app.start()
