"""Attacks that need no code in a kernel: by clients, web pages, MCP servers, and files where plugins are looked for; and by
arguments of calls and limits that are asked for. Each case holds what gets through beside what must not."""
from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import unittest
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import BUILD, PROGRAM, SUPPORT, Place, ability, environment  # noqa: E402

TOKEN = "http-token-" + "b" * 25


class WebClient:
    """Speaks MCP with `ipybox serve --http`, with whatever headers."""

    def __init__(self, url: str):
        self.port, self.session = urlsplit(url).port, ""
        answer = self.exchange(self.message("initialize", protocolVersion="2025-06-18", capabilities={},
                                            clientInfo={"name": "test", "version": "1"}))
        self.session = answer.headers["Mcp-Session-Id"]
        self.exchange({"jsonrpc": "2.0", "method": "notifications/initialized"})

    @staticmethod
    def message(method: str, **params: object) -> dict:
        return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}

    def exchange(self, body: dict | None, method: str = "POST", headers: tuple[tuple[str, str], ...] = ()) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = json.dumps(body).encode() if body else b""
        connection.putrequest(method, "/mcp")
        for name, value in (("Authorization", "Bearer " + TOKEN), ("Accept", "application/json, text/event-stream"),
                            ("Content-Type", "application/json"), ("Content-Length", str(len(data))),
                            *([("Mcp-Session-Id", self.session)] if self.session else []), *headers):
            connection.putheader(name, value)
        connection.endheaders(data)
        answer = connection.getresponse()
        answer.text = answer.read().decode()
        connection.close()
        return answer

    def request(self, method: str, **params: object) -> str:
        return self.exchange(self.message(method, **params)).text

    def call(self, tool: str, **arguments: object) -> str:
        return self.request("tools/call", name=tool, arguments=arguments)

    def end(self) -> None:
        self.exchange(None, "DELETE")


class Clients(unittest.TestCase):
    """Whoever has the token chooses the names of sessions."""

    @contextlib.contextmanager
    def connected(self, *flags: str) -> Iterator[tuple[WebClient, Path]]:
        with Place() as place, place.serving(*flags, IPYBOX_HTTP_TOKEN=TOKEN) as url:
            yield WebClient(url), place.workspace / "sessions"

    @staticmethod
    def left(directories: Path) -> list[str]:
        return os.listdir(directories) if directories.exists() else []

    def wait_for(self, directories: Path, count: int) -> None:
        """Sessions end in the background."""
        pause = threading.Event()
        for _ in range(600):
            if len(self.left(directories)) == count:
                return
            pause.wait(0.05)
        self.fail(f"{len(self.left(directories))} directories of sessions")

    def test_names_of_sessions_that_fail_to_read_leave_nothing(self) -> None:
        with self.connected("--max-sessions", "2") as (client, directories):
            for number in range(100):
                self.assertIn("no files yet", client.call("download_file", path="x", session=f"read {number}"))
                self.assertIn("no files yet", client.request("resources/read", uri=f"ipybox://sessions/read{number}/x"))
            self.assertEqual(self.left(directories), [])
            # The contrast: one that wrote a file is read by both ways, and stays.
            client.call("upload_file", path="x", content="kept here", session="files")
            self.assertIn("kept here", client.call("download_file", path="x", session="files"))
            self.assertIn("kept here", client.request("resources/read", uri="ipybox://sessions/files/x"))
            client.end()
            self.wait_for(directories, 1)

    def test_names_of_sessions_in_which_nothing_comes_about_leave_nothing(self) -> None:
        calls = (("upload_file", {"path": ".env", "content": "x"}), ("upload_file", {"path": "../x", "content": "x"}),
                 ("upload_file", {"path": "x", "content": "%", "encoding": "base64"}), ("interrupt", {}), ("search_tools", {"query": "x"}),
                 ("list_tools", {}), ("list_tools", {"server_name": "../x"}), ("execute_ipython_cell", {"code": "1", "timeout": -1}),
                 ("execute_ipython_cell", {}), ("register_mcp_server", {"server_name": "x", "server_params": {"command": "x"}}),
                 ("no_such_tool", {}))
        with self.connected("--max-sessions", "2") as (client, directories):
            for number in range(100):
                tool, arguments = calls[number % len(calls)]
                client.call(tool, **arguments, session=f"{tool} {number}")
                self.assertLess(len(self.left(directories)), 20, tool)  # those of now, and those that just end
            client.call("upload_file", path="x", content="kept", session="files")
            client.end()
            self.wait_for(directories, 1)

    def test_files_of_ended_sessions_are_bounded(self) -> None:
        with self.connected() as (client, directories):
            client.call("upload_file", path="x", content="first", session="first")
            for number in range(1023):
                (directories / f"earlier{number}").mkdir()
            refused = client.call("upload_file", path="x", content="one more", session="second")
            self.assertIn("holds the files of 1024 sessions", refused)
            self.assertEqual(len(self.left(directories)), 1024)
            self.assertIn("first", client.call("download_file", path="x", session="first"))
            (directories / "earlier0").rmdir()
            self.assertNotIn('"isError":true', client.call("upload_file", path="x", content="one more", session="second"))


class Pages(unittest.TestCase):
    """A page in the browser of whoever runs the server."""

    def test_of_other_programs_on_this_machine_get_no_answer(self) -> None:
        with Place() as place, socket.create_server(("127.0.0.1", 0)) as other, \
                place.serving("--http-origin", "http://localhost:3000", "--http-origin", "https://app.example", IPYBOX_HTTP_TOKEN=TOKEN) as url:
            client = WebClient(url)
            own = client.port
            neighbour = other.getsockname()[1]
            ping, asks = client.message("ping"), ("Access-Control-Request-Method", "POST")
            for origin in (f"http://localhost:{neighbour}", f"http://127.0.0.1:{neighbour}", f"http://[::1]:{neighbour}", "http://localhost",
                           "http://localhost:3001", "https://localhost:3000", f"https://localhost:{own}", f"http://localhost:{own}0",
                           f"http://localhost:{own}.evil.example", f"http://localhost:{own}@evil.example", f"http://localhost.evil.example:{own}",
                           f"http://evil.example:{own}", f"http://127.0.0.2:{own}", "http://app.example", "https://app.example.evil.example",
                           "https://sub.app.example", "null", "", f"http://evil.example http://localhost:{own}"):
                for answer in (client.exchange(ping, headers=(("Origin", origin),)), client.exchange(None, "OPTIONS", (("Origin", origin), asks))):
                    self.assertEqual((answer.status, answer.headers["Access-Control-Allow-Origin"]), (403, None), origin)
            both = (("Origin", f"http://localhost:{own}"), ("Origin", f"http://localhost:{neighbour}"))
            self.assertEqual(client.exchange(ping, headers=both).status, 403)
            for origin in (f"http://localhost:{own}", f"http://127.0.0.1:{own}", f"http://[::1]:{own}", "http://localhost:3000", "https://app.example"):
                answer = client.exchange(ping, headers=(("Origin", origin),))
                self.assertEqual((answer.status, answer.headers["Access-Control-Allow-Origin"]), (200, origin))
                self.assertEqual(client.exchange(None, "OPTIONS", (("Origin", origin), asks)).headers["Access-Control-Allow-Origin"], origin)
            self.assertEqual(client.exchange(ping).status, 200)  # no page at all

    def test_of_anybody_get_one_where_a_person_wants_it_so(self) -> None:
        with Place() as place, place.serving("--http-origin", "*", IPYBOX_HTTP_TOKEN=TOKEN) as url:
            client = WebClient(url)
            self.assertEqual(client.exchange(client.message("ping"), headers=(("Origin", "http://localhost:3001"),)).status, 200)


class Plugins(unittest.TestCase):
    """What lies where plugins are looked for."""

    def listed(self, directory: Path) -> tuple[set[str], str, int]:
        """Names, complaints, and the program's peak memory."""
        with (directory.parent / "listed").open("w+") as out, (directory.parent / "said").open("w+") as errors:
            process = subprocess.Popen([PROGRAM, "plugins", "--json"], stdin=subprocess.DEVNULL, stdout=out, stderr=errors,
                                       env=environment(IPYBOX_PLUGIN_PATH=str(directory)))
            patience = threading.Timer(60, process.kill)
            patience.start()
            _, status, usage = os.wait4(process.pid, 0)
            patience.cancel()
            process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0), errors.seek(0)
            said = errors.read()
            self.assertEqual(process.returncode, 2 if said else 0, said)
            return {plugin["name"] for plugin in json.load(out)}, said, usage.ru_maxrss * 1024

    def setUp(self) -> None:
        self.directory = self.enterContext(Place()).directory("plugins")
        # The contrast: a link to a plugin is one.
        (self.directory / "link.so").symlink_to(Path(os.environ["IPYBOX_TEST_BAD_PLUGINS"]) / "sample.so")
        names, said, self.usual = self.listed(self.directory)
        self.assertIn("sample", names, said)

    def refused(self, *names: str, why: str = "") -> None:
        listed, said, peak = self.listed(self.directory)
        self.assertIn("sample", listed)
        for name in names:
            self.assertIn(f"/{name}.so: {why}", said)
        self.assertLess(peak, self.usual + (32 << 20))

    def test_pipes_and_devices_are_not_opened(self) -> None:
        pipe = self.directory / "pipe.so"
        os.mkfifo(pipe)
        for name, target in (("to_pipe", "pipe.so"), ("zero", "/dev/zero"), ("terminal", "/dev/tty")):
            (self.directory / f"{name}.so").symlink_to(target)
        opened = threading.Event()

        def wait_for_a_reader() -> None:
            os.close(os.open(pipe, os.O_WRONLY))
            opened.set()

        writer = threading.Thread(target=wait_for_a_reader, daemon=True)
        writer.start()
        self.refused("pipe", "to_pipe", "zero", "terminal", why="not a regular file")
        self.assertFalse(opened.is_set())
        # The contrast: whoever opened it would have been noticed.
        os.close(os.open(pipe, os.O_RDONLY))
        writer.join(60)
        self.assertTrue(opened.is_set())

    def test_endless_files_and_links_are_not_read(self) -> None:
        (self.directory / "loop.so").symlink_to("loop.so")
        (self.directory / "endless.so").touch()
        os.truncate(self.directory / "endless.so", 1 << 40)
        self.refused("loop", "endless")


class Recorder(ThreadingHTTPServer):
    """Notes what arrives. As a proxy it leads to the hosts of `pages` alone, all of which it plays itself."""

    daemon_threads = True

    def __init__(self, certificate: ssl.SSLContext | None = None):
        super().__init__(("127.0.0.1", 0), Visit)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.certificate = certificate
        self.requests: list[tuple[str, str, str]] = []  # method, target, body
        self.pages: dict[str, tuple[int, dict[str, str], object]] = {}  # by URL: status, headers, JSON
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, *_: object) -> None:
        pass  # a client that goes away


class Visit(BaseHTTPRequestHandler):
    protocol_version, origin = "HTTP/1.1", ""

    def log_message(self, *_: object) -> None:
        pass

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        self.server.requests.append((self.command, self.origin + self.path, body))
        status, headers, value = self.server.pages.get(self.origin + self.path, (404, {}, {}))
        data = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {**headers, "Content-Type": "application/json", "Content-Length": str(len(data))}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)

    def finish(self) -> None:
        super().finish()
        self.connection.close()

    do_GET = do_POST = do_DELETE = answer

    def do_CONNECT(self) -> None:
        self.server.requests.append(("CONNECT", self.path, ""))
        known = any(urlsplit(page).hostname == self.path.removesuffix(":443") for page in self.server.pages)
        self.send_response(200 if known else 502)
        self.end_headers()
        self.close_connection = not known
        if known:
            self.origin = "https://" + self.path.removesuffix(":443")
            self.connection = self.server.certificate.wrap_socket(self.connection, server_side=True)
            self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)


def read_tools(place: Place, server: dict, **env: str) -> str:
    """What the program says when it asks an MCP server for its tools, and cannot get any."""
    done = subprocess.run([PROGRAM, "apigen", "own", "--server-params", json.dumps(server), "--stdout", "x"], cwd=place.workspace,
                          env=environment(**env), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    return done.stderr


class Transports(unittest.TestCase):
    def test_an_address_is_the_old_transports_by_its_last_segment_alone(self) -> None:
        with Place() as place, Recorder() as server:
            for path, more, method in (("/sse-tools/mcp", {}, "POST"), ("/sse/mcp", {}, "POST"), ("/xsse", {}, "POST"),
                                       ("/mcp?next=/sse", {}, "POST"), ("/x/sse", {"type": "http"}, "POST"),
                                       ("/x/sse", {}, "GET"), ("/sse/", {}, "GET"), ("/sse?key=/mcp", {}, "GET"), ("/mcp", {"type": "sse"}, "GET")):
                with self.subTest(path, **more):
                    server.requests.clear()
                    read_tools(place, {"url": server.url + path, **more})
                    came, target, body = server.requests[0]
                    self.assertEqual((came, target), (method, path))
                    if method == "POST":
                        self.assertIn("initialize", [json.loads(sent).get("method") for _, _, sent in server.requests if sent])


class Authorization(unittest.TestCase):
    """A server on the internet names where tokens come from; a proxy of the environment would reach what is near it."""

    HOST, AUTHORITY, SECRET = "203.0.113.1", "203.0.113.2", "s3cret-of-the-client"  # for documentation: nobody has them
    NEAR = ("localhost", "LOCALHOST", "x.localhost", "localhost.", "127.0.0.1", "127.1", "2130706433", "0x7f.0.0.1", "[::1]",
            "[::ffff:127.0.0.1]", "0.0.0.0", "10.0.0.1", "192.168.0.1", "169.254.169.254", "[fe80::1]", "[fd00::1]", "metadata.google.internal",
            "instance-data", "printer.local", "vault.corp", "api.svc.cluster.local", "router.lan", "intranet", "localhost.localdomain")

    @classmethod
    def setUpClass(cls) -> None:
        if not shutil.which("openssl"):
            raise unittest.SkipTest("openssl makes the certificate of these tests")
        cls.place = cls.enterClassContext(Place())
        cls.certificate, key = cls.place.outside / "certificate.pem", cls.place.outside / "key.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                        "-subj", "/CN=test", "-addext", f"subjectAltName=IP:{cls.HOST},IP:{cls.AUTHORITY}", "-keyout", str(key),
                        "-out", str(cls.certificate)], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cls.certificate, key)
        cls.proxy = cls.enterClassContext(Recorder(context))

    def asked(self, challenge: str = "", issuer: str = "", endpoint: str = "", redirect: str = "", **auth: object) -> tuple[set[str], str]:
        """What the proxy was asked for besides the two hosts of the test, and what the program says."""
        mcp, authority, proxy = f"https://{self.HOST}", f"https://{self.AUTHORITY}", self.proxy
        named = f'Bearer resource_metadata="{challenge or mcp + "/metadata"}"'
        metadata = {"resource": mcp + "/mcp", "authorization_servers": [issuer or authority]}
        server = {"issuer": authority, "token_endpoint": endpoint or authority + "/token", "authorization_endpoint": authority + "/authorize",
                  "response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"],
                  "grant_types_supported": ["client_credentials"], "token_endpoint_auth_methods_supported": ["client_secret_post"]}
        proxy.requests.clear()
        proxy.pages = {mcp + "/mcp": (401, {"WWW-Authenticate": named}, {}),
                       mcp + "/metadata": (302, {"Location": redirect}, {}) if redirect else (200, {}, metadata),
                       mcp + "/moved": (200, {}, metadata),
                       authority + "/.well-known/oauth-authorization-server": (200, {}, server),
                       authority + "/token": (200, {}, {"access_token": "t0ken", "token_type": "Bearer", "expires_in": 60})}
        auth |= {"grant": "client_credentials", "client_id": "me", "client_secret": self.SECRET}
        said = read_tools(self.place, {"url": mcp + "/mcp", "auth": auth}, HTTPS_PROXY=proxy.url, HTTP_PROXY=proxy.url,
                          SSL_CERT_FILE=str(self.certificate), XDG_DATA_HOME=str(self.place.outside / "data"))
        shutil.rmtree(self.place.outside / "data", ignore_errors=True)  # the token
        names = {target for method, target, _ in proxy.requests if method == "CONNECT"}
        self.assertIn(self.HOST + ":443", names, said)
        # What is not asked for by a tunnel is asked for by its whole address.
        names |= {target for _, target, _ in proxy.requests if target.startswith("http://")}
        return names - {self.HOST + ":443", self.AUTHORITY + ":443"}, said

    def secret_went_to(self) -> set[str]:
        return {target for _, target, body in self.proxy.requests if self.SECRET in body}

    def test_no_proxy_is_asked_for_what_is_near_it(self) -> None:
        for host in self.NEAR:
            for scheme in ("https", "http"):
                place = f"{scheme}://{host}/m"
                with self.subTest(place):
                    names, said = self.asked(challenge=place)
                    self.assertEqual(names, set(), said)
                    self.assertRegex(said, "may not be connected to|is on this machine|not protected by TLS|malformed")

    def test_nor_by_any_other_way_to_name_it(self) -> None:
        for host in ("localhost", "169.254.169.254", "metadata.google.internal", "printer.local", "intranet"):
            for where in ("issuer", "endpoint", "redirect"):
                with self.subTest(where, host=host):
                    names, said = self.asked(**{where: f"https://{host}/m"})
                    self.assertEqual(names, set(), said)
                    if where != "redirect":
                        self.assertEqual(self.secret_went_to(), set())

    def test_it_is_asked_for_what_is_on_the_internet(self) -> None:
        self.assertEqual(self.asked()[0], set())
        self.assertEqual(self.secret_went_to(), {f"https://{self.AUTHORITY}/token"})
        # Redirects are followed within the origin alone.
        self.assertEqual(self.asked(redirect=f"https://{self.HOST}/moved")[0], set())
        self.assertEqual(self.secret_went_to(), {f"https://{self.AUTHORITY}/token"})
        for where in ("challenge", "issuer", "endpoint"):
            with self.subTest(where):
                self.assertEqual(self.asked(**{where: "https://203.0.113.3/m"})[0], {"203.0.113.3:443"})
        # By name too; and what is in the network, where a person wants it so.
        self.assertEqual(self.asked(challenge="https://vault.corp/m", private_network=True)[0], {"vault.corp:443"})
        self.assertEqual(self.asked(challenge="https://metadata.google.internal/m", private_network=True)[0], set())
        self.assertEqual(self.asked(challenge="https://login.example.com/m")[0], {"login.example.com:443"})


class Limits(unittest.TestCase):
    """A limit that nobody would enforce is refused, and not passed over."""

    CODE = """
import resource
open("ran", "w").close()
print(resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_CPU)[0])
"""

    def start(self, sandbox: str, *limits: str) -> str:
        """What the code prints, or why there is none."""
        with Place() as place:
            options = [option for limit in limits for option in ("--limit", limit)]
            outcome = place.run(self.CODE, options, sandbox, env={"IPYBOX_PLUGIN_PATH": str(BUILD / "examples/custom_sandbox")})
            self.assertEqual((place.workspace / "ran").exists(), outcome.status == 0, outcome)
            self.assertIn(outcome.status, (0, 2), outcome)
            return outcome.errors if outcome.status else outcome.output

    def refused(self, sandbox: str, limits: dict[str, str]) -> None:
        for limit, field in limits.items():
            with self.subTest(sandbox, limit=limit):
                self.assertRegex(self.start(sandbox, limit), f"(limits\\.{field}\\)|{field} cannot be enforced)")

    def test_by_a_sandbox_that_confines_nothing(self) -> None:
        self.assertEqual(self.start("none", "open-files=1000", "cpu=600", "memory=8G", "file-size=1G", "wall=600"), "(1000, 1000) 600\n")
        self.refused("none", {"memory-total=1G": "memory_total", "processes=100": "processes", "scratch=1G": "scratch_size",
                              "scratch-inodes=1000": "scratch_inodes"})

    def test_by_a_sandbox_whose_author_wrote_nothing_about_it(self) -> None:
        if not (BUILD / "examples/custom_sandbox/landlock.so").exists():
            self.skipTest("this build has no examples")
        if missing := ability("landlock"):
            self.skipTest(missing)
        self.assertEqual(self.start("landlock", "open-files=1000", "cpu=600", "wall=600"), "(1000, 1000) 600\n")
        self.refused("landlock", {"memory-total=1G": "memory_total", "processes=100": "processes", "scratch=1G": "scratch_size",
                                  "scratch-inodes=1000": "scratch_inodes"})


class Arguments(unittest.TestCase):
    """Texts that one reader takes for a path in the allowed directory, and another for something else."""

    ODD = ("$HOME/x", "${HOME}/x", "$(id)", "`id`", "%2e%2e/x", "%252e%252e/x", "%%32%65/x", "%u002e%u002e/x", "..%20/x", "..%2fx", ".. /x", ". ./x",
           "...", "..\\x", "..\u00a0/x", "..\u200b/x", "\uff0e\uff0e/x", "\u2024\u2024/x", "..\uff0fx", "x\0y", "x\ny", "%USERPROFILE%/x")
    OUTSIDE = ("../x", "./../x", "a/../../x", "//..//x")

    def carried_out(self, condition: dict, texts: list[str]) -> list[str]:
        """Which of these texts the MCP server got, when code in a kernel sent them all."""
        with Place() as place:
            calls = place.file("outside/calls", mode=0o666)
            config = place.file("outside/mcp.json", json.dumps({"mcpServers": {"own": {
                "command": sys.executable, "args": [str(SUPPORT / "mcp_server.py"), "--calls", str(calls)]}}}))
            rule = {"name": "drafts", "when": {"tool": "echo", "arguments": {"/text": condition}}, "then": "allow"}
            policy = place.file("outside/policy.json", json.dumps({"rules": [rule]}))
            code = f"""
import json
from ipybox_kernel.client import send
for text in json.loads({json.dumps(texts)!r}):
    try:
        send("own", "echo", {{"text": text}})
    except Exception as error:
        print(type(error).__name__)
"""
            outcome = place.run(code, ["--config", str(config), "--policy", str(policy)])
            self.assertEqual(outcome.status, 0, outcome)
            got = [json.loads(line)[1]["text"] for line in calls.read_text().splitlines()]
            self.assertEqual(outcome.output, "ApprovalRejectedError\n" * (len(texts) - len(got)))
            return got

    def test_never_count_as_under_it(self) -> None:
        inside = ["/drafts", "/drafts/x", "/drafts/./a//b", "/drafts/a/../x", "/etc/../drafts/x", "x", "a/x"]
        bad = [prefix + text for prefix in ("/drafts/", "") for text in self.ODD + self.OUTSIDE]
        bad += ["/draftsman", "/Drafts/x", "/etc/passwd", "file:///drafts/x", " /drafts/x", "~/x", "~root", ""]
        texts = [text for pair in zip(bad, inside * len(bad)) for text in pair]
        self.assertEqual(self.carried_out({"under": "/drafts", "base": "/drafts"}, texts), texts[1::2])

    def test_are_let_through_where_texts_are_compared_as_they_are(self) -> None:
        texts = ["/drafts/" + text for text in self.ODD + self.OUTSIDE]
        self.assertEqual(self.carried_out({"glob": "/drafts/*"}, [*texts, "/etc/passwd"]), texts)


if __name__ == "__main__":
    unittest.main()
