"""CodeExecutor: code, output, approval, and what it makes of failures."""
import asyncio
import decimal
import json
import os
import signal
import sys
import unittest
from pathlib import Path

from support import OWN_SERVER, PYTHON, Workspace, children, is_running, wait_until

import ipybox
from ipybox import (ApprovalRequest, CodeExecutionChunk, CodeExecutionDisplay, CodeExecutionError,
                    CodeExecutionResult, CodeExecutor, Decision, HostDiedError, InputRequest, IpyboxError,
                    ToolCall, generate_mcp_sources)
from ipybox._approval import judge

CALL = "from mcptools.own import add\nprint(add.run(a=2, b=3).sum)"


def executor(**options):
    return CodeExecutor(python=PYTHON, kernel_init_timeout=60, **options)


async def collected(stream):
    return [event async for event in stream]


class OutputTest(Workspace):
    async def test_text_state_and_errors(self):
        async with executor() as box:
            self.assertEqual((await box.execute("x = 20\nprint('a')\nx + 1")).text, "a\n21")
            result = await box.execute("print(x)")
            self.assertEqual((result.text, result.images, result.status), ("20", [], "ok"))
            self.assertIsNone((await box.execute("y = 1")).text)
            with self.assertRaises(CodeExecutionError) as caught:
                await box.execute("print('before')\n1/0")
            self.assertIn("ZeroDivisionError: division by zero", str(caught.exception))
            self.assertEqual(caught.exception.result.text, "before")
            self.assertEqual(caught.exception.result.error_name, "ZeroDivisionError")
            self.assertEqual([variable.name for variable in await box.variables()], ["x", "y"])
            self.assertEqual(await box.complete("grüße = x.bit_l"), ipybox.CodeCompletions(10, ["bit_length"]))
            await box.reset()
            with self.assertRaisesRegex(CodeExecutionError, "NameError"):
                await box.execute("x")

    async def test_chunks_are_the_whole_output(self):
        async with executor() as box:
            events = await collected(box.stream(
                "import sys\nprint('out')\nprint('err', file=sys.stderr)", chunks=True, streams=True))
            chunks = [event for event in events if isinstance(event, CodeExecutionChunk)]
            self.assertEqual("".join(chunk.text for chunk in chunks), "out\nerr\n")
            self.assertEqual({chunk.stderr for chunk in chunks}, {True, False})
            self.assertEqual((events[-1].stdout, events[-1].stderr), ("out\n", "err\n"))
            events = await collected(box.stream("print('out')", chunks=True, keep_text=False))
            self.assertIsNone(events[-1].text)

    async def test_displays_images_and_measures(self):
        async with executor(images_dir="pictures") as box:
            events = await collected(box.stream(
                "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()\nopen('made', 'w').close()\n7",
                displays=True, measure=True))
            shown = [event for event in events if isinstance(event, CodeExecutionDisplay)]
            self.assertIn("image/png", shown[0].data)
            self.assertTrue(shown[-1].is_result)
            result = events[-1]
            self.assertEqual(result.value_repr, "7")
            self.assertEqual(len(result.images), 1)
            self.assertEqual(result.images[0].parent, Path("pictures"))
            self.assertTrue(result.images[0].read_bytes().startswith(b"\x89PNG"))
            self.assertIn(("made", "created"), [(file.path, file.change) for file in result.measures.files])

    async def test_a_large_output_arrives_whole(self):
        async with executor() as box:
            count = 0
            async for event in box.stream("for i in range(200_000): print(i)", chunks=True, keep_text=False):
                if isinstance(event, CodeExecutionChunk):
                    count += event.text.count("\n")
            self.assertEqual(count, 200_000)

    async def test_input_asks_the_reader(self):
        async with executor(allow_input=True) as box:
            async for event in box.stream("print(input('name? ') + '!')"):
                if isinstance(event, InputRequest):
                    self.assertEqual((event.prompt, event.password), ("name? ", False))
                    self.assertTrue(await event.answer("Ada"))
                elif isinstance(event, CodeExecutionResult):
                    self.assertIn("Ada!", event.text)
            with self.assertRaisesRegex(CodeExecutionError, "EOFError"):
                await box.execute("input()")

    async def test_files_go_both_ways(self):
        async with executor(sandbox=True) as box:
            data = os.urandom(9 << 20)
            await box.upload("in/data.bin", data)
            with self.assertRaises(IpyboxError):
                await box.upload("in/data.bin", b"", overwrite=False)
            result = await box.execute("d = open('in/data.bin', 'rb').read()\nopen('out.bin', 'wb').write(d[::-1])")
            self.assertEqual(result.text, str(len(data)))
            self.assertEqual(await box.download("out.bin"), data[::-1])
            await box.execute("""
import os, threading
def grow():
    while True:
        os.truncate("out.bin", os.path.getsize("out.bin") + (64 << 20))
        grown.wait(0.01)
grown = threading.Event()
threading.Thread(target=grow, daemon=True).start()""")
            grown = await asyncio.wait_for(box.download("out.bin"), 60)  # however fast it grows
            self.assertEqual(grown[:len(data)], data[::-1])
            with self.assertRaises(IpyboxError) as caught:
                await box.download("../settings")
            self.assertEqual(caught.exception.code, "bad_argument")


class SandboxTest(Workspace):
    async def test_code_is_confined_only_when_told(self):
        secret = self.directory / "secret"
        secret.write_text("s3cret")
        read = f"print(open({str(secret)!r}).read())"
        async with executor() as box:
            self.assertEqual((await box.execute(read)).text, "s3cret")
        async with executor(sandbox=True) as box:
            self.assertEqual(box.workspace, self.workspace)
            with self.assertRaisesRegex(CodeExecutionError, "FileNotFoundError"):
                await box.execute(read)
            await box.execute("open('mine', 'w').write('x')")
            self.assertEqual((self.workspace / "mine").read_text(), "x")

    async def test_programs_limits_and_violations(self):
        seen = []
        async with executor(sandbox=True, programs="deny", limits={"open_files": 256},
                            allowed_hosts=["allowed.invalid"], on_violation=seen.append) as box:
            with self.assertRaisesRegex(CodeExecutionError, "PermissionError"):
                await box.execute("import subprocess; subprocess.run(['true'])")
            with self.assertRaises(CodeExecutionError) as caught:
                await box.execute("import urllib.request; urllib.request.urlopen('http://denied.invalid')")
            self.assertEqual([violation.layer for violation in caught.exception.result.violations], ["network"])
            self.assertIn("denied.invalid", seen[0].what)
            with self.assertRaisesRegex(CodeExecutionError, "OSError.*Too many open files"):
                await box.execute("f = [open('/dev/null') for _ in range(300)]")

    async def test_a_config_without_a_sandbox_is_told(self):
        config = self.directory / "config.json"
        config.write_text(json.dumps({"network": {"allowedDomains": []}}))
        with self.assertWarnsRegex(RuntimeWarning, "no effect"):
            CodeExecutor(sandbox_config=config)
        with self.assertRaisesRegex(ValueError, "cannot read"):
            CodeExecutor(sandbox=True, sandbox_config=self.directory / "missing.json")
        config.write_text("[1]")
        with self.assertRaisesRegex(ValueError, "expected an object"):
            CodeExecutor(sandbox=True, sandbox_config=config)

    async def test_wrong_options_are_named(self):
        for options, words in (({"limits": {"memory": 1}}, "memory"), ({"programs": "never"}, "programs"),
                               ({"kernel": "nowhere"}, "nowhere"), ({"sandbox": "nowhere"}, "nowhere"),
                               ({"approval": {"rulez": []}}, "rulez")):
            with self.subTest(options), self.assertRaisesRegex(IpyboxError, words):
                await executor(**options).start()
        with self.assertRaisesRegex(ValueError, "needs approve_shell_cmds"):
            CodeExecutor(require_shell_escape=True)
        with self.assertRaisesRegex(ValueError, "exclude each other"):
            CodeExecutor(approve_tool_calls=False, approval="ask")
        with self.assertRaisesRegex(ValueError, "connect_timeout"):
            CodeExecutor(connect_timeout=-1)
        ipybox.shutdown()
        opened = os.listdir("/proc/self/fd")
        with self.assertRaisesRegex(ValueError, "log_level"):
            await CodeExecutor(log_level="LOUD").start()
        self.assertEqual(os.listdir("/proc/self/fd"), opened)


class ApprovalTest(Workspace):
    async def asyncSetUp(self):
        self.modules = await generate_mcp_sources("own", OWN_SERVER, self.workspace / "mcptools")

    async def test_generated_servers_are_registered(self):
        self.assertIn("add", self.modules)
        async with executor(sandbox=True) as box:
            self.assertEqual([server.name for server in await box.servers()], ["own"])
            self.assertIn("add", [tool.name for tool in await box.list_tools("own")])
            self.assertIn("own.add(a, b)", await box.search_tools("sum of numbers"))
            self.assertIn("a:", await box.list_stubs("own"))
            self.assertEqual((await box.execute(CALL)).text, "5")

    async def test_another_process_knows_them_too(self):
        from ipybox import _servers
        [kept] = (self.directory / "settings/ipybox/generated").iterdir()
        self.assertEqual((kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777), (0o600, 0o700))
        _servers._known.clear()
        async with executor(sandbox=True) as box:
            self.assertEqual((await box.execute(CALL)).text, "5")
        async with executor(sandbox=True, workspace=self._other_workspace()) as box:
            self.assertEqual(await box.servers(), [])

    async def test_one_that_is_generated_later_too(self):
        async with executor(sandbox=True) as box, \
                executor(sandbox=True, workspace=self._other_workspace()) as other:
            await generate_mcp_sources("later", OWN_SERVER, self.workspace / "mcptools")
            self.assertEqual((await box.execute(CALL.replace("own", "later"))).text, "5")
            self.assertEqual(await other.servers(), [])

    def _other_workspace(self):
        other = self.directory / "other"
        other.mkdir()
        if os.geteuid() == 0:
            os.chown(other, 65534, 65534)
        return other

    async def test_requests_say_what_is_called(self):
        async with executor(sandbox=True, session="desk") as box:
            requests = []
            async for event in box.stream(CALL):
                if isinstance(event, ApprovalRequest):
                    requests.append(event)
                    self.assertTrue(await event.accept(by="test"))
                    self.assertFalse(await event.reject())  # the first answer counts
                    self.assertTrue(await event.response())
                else:
                    self.assertEqual(event.text, "5")
            self.assertEqual(len(requests), 1)
            self.assertEqual(str(requests[0]), "own.add(a=2, b=3)")
            call = requests[0].call
            self.assertEqual((call.server, call.tool, call.arguments, call.origin, call.line, call.session),
                             ("own", "add", {"a": 2, "b": 3}, "mcp", 2, "desk"))

    async def test_requests_are_safe_to_show(self):
        async def respond(_allow):
            return True

        request = ApprovalRequest("own", "e\x1b[2Jcho", {"te\u202ext": "a\x1b\n\u202e"}, respond)
        self.assertEqual(str(request), "own.e\\x1b[2Jcho(te\\u202ext='a\\x1b\\n\\u202e')")
        self.assertTrue(str(request).isprintable())

        def fail(_call):
            raise KeyError

        with self.assertLogs("ipybox") as logged:
            await judge(fail, ToolCall("own\nforged", "e\x1b[2Jcho", {}))
        self.assertEqual(logged.records[0].getMessage(),
                         "the approval policy failed on own\\nforged.e\\x1b[2Jcho")

    async def test_a_no_reaches_the_code_with_its_reason(self):
        async with executor(sandbox=True) as box:
            with self.assertRaises(CodeExecutionError) as caught:
                async for event in box.stream(CALL):
                    await event.reject("not on Sundays")
            self.assertRegex(str(caught.exception), "ApprovalRejectedError.*rejected.*not on Sundays")

    async def test_a_yes_to_other_arguments(self):
        async with executor(sandbox=True) as box:
            async for event in box.stream(CALL):
                if isinstance(event, ApprovalRequest):
                    await event.accept(arguments={"a": 40, "b": 2})
                else:
                    self.assertEqual(event.text, "42")

    async def test_policies_as_data_and_callables(self):
        seen = []

        async def judge(call: ToolCall):
            seen.append(call.tool)
            return Decision(False, "too much") if call.arguments.get("a", 0) > 100 else None

        async with executor(sandbox=True, approval=judge) as box:
            self.assertEqual((await box.execute(CALL)).text, "5")  # None leaves it to execute()
            with self.assertRaisesRegex(CodeExecutionError, "too much"):
                await box.execute("add.run(a=101, b=0)")
            events = await collected(self._accepting(box.stream(CALL)))
            self.assertEqual(events[-1].text, "5")
            self.assertEqual(seen, ["add"] * 3)
            await box.set_policy("deny")
            with self.assertRaisesRegex(CodeExecutionError, "rejected"):
                await box.execute(CALL)
            await box.set_policy({"first_match": [{"rules": [{"when": {"tool": "echo"}, "then": "deny"}]},
                                                  lambda call: call.tool == "add"]})
            self.assertEqual((await box.execute(CALL)).text, "5")
            with self.assertRaisesRegex(CodeExecutionError, "rejected"):
                await box.execute("from mcptools.own import echo; echo.run(text='x')")

    @staticmethod
    async def _accepting(stream):
        async for event in stream:
            if isinstance(event, ApprovalRequest):
                await event.accept()
            yield event

    async def test_a_policy_that_fails_is_a_no(self):
        def fail(call):
            raise KeyError("secret detail")

        for policy, words in ((fail, "KeyError"), (lambda call: "yes", "no decision")):
            async with executor(sandbox=True, approval=policy) as box:
                with self.subTest(words), self.assertLogs("ipybox"), \
                        self.assertRaisesRegex(CodeExecutionError, words) as caught:
                    await box.execute(CALL)
                self.assertNotIn("secret detail", str(caught.exception))

    async def test_a_decision_that_cannot_be_sent_is_a_no(self):
        for unfit in (Decision(True, arguments={"a": object()}), Decision(True, arguments=[1]),
                      Decision(False, 5), Decision(False, "\ud800")):
            async with executor(sandbox=True, approval=lambda _call, said=unfit: said) as box:
                with self.subTest(unfit), self.assertLogs("ipybox"), \
                        self.assertRaisesRegex(CodeExecutionError, "rejected.*cannot be sent"):
                    await asyncio.wait_for(box.execute(CALL), 20)

    async def test_nobody_answers(self):
        async with executor(sandbox=True, approval_timeout=0.3) as box:
            with self.assertRaisesRegex(CodeExecutionError, "ApprovalTimeoutError"):
                async for event in box.stream(CALL):
                    self.assertFalse(await event.response())

    async def test_human_time_is_not_on_the_clock(self):
        async with executor(sandbox=True) as box:
            await box.execute(CALL)
            async for event in box.stream(CALL, timeout=1):
                if isinstance(event, ApprovalRequest):
                    await asyncio.sleep(1.5)
                    await event.accept()
                else:
                    self.assertEqual(event.text, "5")

    async def test_the_audit_log_tells_who(self):
        log = self.directory / "audit.jsonl"
        async with executor(sandbox=True, audit=log, session="desk") as box:
            async for event in box.stream(CALL):
                if isinstance(event, ApprovalRequest):
                    await event.accept(by="Ada")
        records = [record async for record in ipybox.show_audit(log, session="de*")]
        self.assertIn("Ada", json.dumps(records))
        self.assertEqual([record async for record in ipybox.show_audit(log, session="other")], [])
        self.assertIn((await ipybox.verify_audit([log])).outcome, ("whole", "unknown"))
        self.assertTrue((await ipybox.audit_key()).startswith("-----BEGIN PUBLIC KEY-----"))
        log.write_text(log.read_text().replace("Ada", "Eve"))
        self.assertEqual((await ipybox.verify_audit([log])).outcome, "broken")

    async def test_code_says_nothing_that_the_host_cannot_be_asked_about(self):
        """Numbers and texts that Python's JSON refuses, or that mean something in the protocol."""
        async with executor(sandbox=True) as box, executor() as other:
            await box.execute("import sys; sys.set_int_max_str_digits(0)")
            for value in ("10**5000", "-10**5000", "1e999", "float('inf')", "'\\ud800'", "'\\n{\"id\": 1}\\n'",
                          "eval('['*90 + ']'*90)"):
                with self.subTest(value):
                    for call in (f"'echo', {{'text': {value}}}", f"'add', {{'a': {value}, 'b': 1}}"):
                        with self.assertRaises(CodeExecutionError):
                            async for event in box.stream(f"from ipybox_kernel import _send\n_send('own', {call})"):
                                await event.reject()
                    shown = f"from IPython.display import display\ndisplay({{'application/json': {value}}}, raw=True)"
                    async for _ in box.stream(shown, displays=True, timeout=20):
                        pass
                    self.assertEqual((await other.execute("1")).text, "1")
            self.assertEqual(len(ipybox_hosts()), 1)

    async def test_long_integers_are_decimals_whatever_python_converts(self):
        before = sys.get_int_max_str_digits()
        self.addCleanup(sys.set_int_max_str_digits, before)
        async with executor(sandbox=True) as box:
            await box.execute("import sys; sys.set_int_max_str_digits(0)")
            for most in (640, before, 0):
                sys.set_int_max_str_digits(most)
                for digits, kind in ((600, int), (1000, decimal.Decimal), (5000, decimal.Decimal)):
                    with self.subTest((most, digits)), self.assertRaises(CodeExecutionError):
                        code = f"from ipybox_kernel import _send\n_send('own', 'add', {{'a': -10**{digits}, 'b': 1}})"
                        async for event in box.stream(code):
                            value = event.call.arguments["a"]
                            await event.reject()
                            self.assertIs(type(value), kind)
                            self.assertEqual(value, -10**digits)

    async def test_code_registers_no_server(self):
        """What the original lets code do: name a command that starts on the host."""
        async with executor(sandbox=True) as box:
            with self.assertRaises(CodeExecutionError):
                await box.execute("from ipybox_kernel import ToolRunner\n"
                                  "ToolRunner('evil', {'command': 'touch', 'args': ['/tmp/x']}).run_sync('t', {})")
            self.assertEqual([server.name for server in await box.servers()], ["own"])


class EndTest(Workspace):
    async def test_timeout_keeps_output_and_state(self):
        async with executor() as box:
            await box.execute("x = 1")
            with self.assertRaisesRegex(asyncio.TimeoutError, "0.30s") as caught:
                await box.execute("print('so far', flush=True)\nimport time; time.sleep(30)", timeout=0.3)
            self.assertEqual(caught.exception.result.text, "so far")
            self.assertEqual((await box.execute("x")).text, "1")

    async def test_cancel_ends_streams_without_a_result(self):
        async with executor() as box:
            asyncio.get_running_loop().call_later(0.3, box.cancel)
            events = await collected(box.stream("import time; time.sleep(30)"))
            self.assertEqual(events, [])
            asyncio.get_running_loop().call_later(0.3, box.cancel)
            result = await box.execute("import time; time.sleep(30)")
            self.assertEqual((result.text, result.images, result.status), (None, [], "cancelled"))
            box.cancel()  # nothing runs
            self.assertEqual((await box.execute("1")).text, "1")

    async def test_cancelling_the_task_cancels_the_cell(self):
        async with executor() as box:
            task = asyncio.ensure_future(box.execute("x = 1\nimport time; time.sleep(30)\nx = 2"))
            await asyncio.sleep(0.5)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertEqual((await box.execute("x")).text, "1")

    async def test_leaving_the_loop_cancels_the_cell(self):
        async with executor() as box:
            stream = box.stream("while True: print('x', flush=True)", chunks=True, keep_text=False)
            async for _ in stream:
                break
            await stream.aclose()
            self.assertEqual((await box.execute("1")).text, "1")

    async def test_one_at_a_time(self):
        async with executor() as box:
            task = asyncio.ensure_future(box.execute("import time; time.sleep(1)"))
            await asyncio.sleep(0.3)
            with self.assertRaises(IpyboxError) as caught:
                await box.execute("1")
            self.assertEqual(caught.exception.code, "busy")
            box.cancel()
            await task

    async def test_a_slow_reader_holds_up_itself_alone(self):
        async with executor() as box, executor() as other:
            stream = box.stream("for i in range(64): print('x' * (1 << 20))", chunks=True, keep_text=False)
            first = await stream.__anext__()
            for _ in range(10):
                await asyncio.sleep(0.1)
                self.assertEqual((await other.execute("1")).text, "1")
            waiting = sum(len(event.text) for event in box._run._events)
            self.assertLess(waiting, 8 << 20)  # of 64 MiB
            rest = [event.text async for event in stream if isinstance(event, CodeExecutionChunk)]
            self.assertEqual(len(first.text) + sum(map(len, rest)), 64 * ((1 << 20) + 1))

    async def test_stop_while_nobody_reads(self):
        async with executor() as box:
            stream = box.stream("for i in range(64): print('x' * (1 << 20))", chunks=True, keep_text=False)
            await stream.__anext__()
            await asyncio.wait_for(box.reset(), 20)
            self.assertEqual((await box.execute("1")).text, "1")
            stream = box.stream("for i in range(64): print('x' * (1 << 20))", chunks=True, keep_text=False)
            await stream.__anext__()
            await asyncio.wait_for(box.stop(), 20)
            await box.start()

    async def test_many_beside_each_other(self):
        async def one(number):
            async with executor() as box:
                return (await box.execute(f"{number} + 1")).text

        self.assertEqual(await asyncio.gather(*map(one, range(8))), [str(n + 1) for n in range(8)])
        self.assertEqual(len(ipybox_hosts()), 1)

    async def test_a_dead_kernel_is_one_error_and_reset_helps(self):
        async with executor() as box:
            with self.assertRaises(ipybox.KernelDiedError):
                await box.execute("import os; os.kill(os.getpid(), 9)")
            self.assertFalse(await box.kernel_alive())
            await box.reset()
            self.assertEqual((await box.execute("1")).text, "1")

    async def test_a_dead_host_is_one_error_and_start_helps(self):
        box = executor()
        await box.start()
        task = asyncio.ensure_future(box.execute("import time; time.sleep(30)"))
        await asyncio.sleep(0.5)
        [host] = ipybox_hosts()
        below = children(host)
        os.kill(host, signal.SIGKILL)
        with self.assertRaisesRegex(HostDiedError, "signal 9.*start"):
            await asyncio.wait_for(task, 10)
        with self.assertRaises(HostDiedError):
            await box.execute("1")
        self.assertTrue(wait_until(lambda: not any(map(is_running, below))), "the kernel outlived its host")
        await box.start()
        self.assertEqual((await box.execute("1")).text, "1")
        await box.stop()

    async def test_use_without_start(self):
        box = executor()
        for work in (box.execute("1"), box.reset(), box.variables()):
            with self.assertRaisesRegex(RuntimeError, "not started"):
                await work
        await box.stop()
        await box.start()
        with self.assertRaisesRegex(RuntimeError, "started already"):
            await box.start()
        await box.stop()
        both = await asyncio.gather(box.start(), box.start(), return_exceptions=True)  # again
        self.assertIsNone(both[0])
        self.assertRegex(str(both[1]), "being started already")
        self.assertEqual((await box.execute("1")).text, "1")
        await box.stop()
        await box.stop()

    async def test_cancelled_starts_leave_nothing(self):
        for delay in (0, 0.001, 0.05):
            task = asyncio.ensure_future(executor().start())
            await asyncio.sleep(delay)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
        async with executor() as box:
            self.assertEqual((await box.execute("1")).text, "1")

    async def test_what_is_no_json_is_an_error_here(self):
        async with executor() as box:
            with self.assertRaises(ValueError):
                await box.execute("\udcff")
            self.assertEqual((await box.execute("1")).text, "1")


def ipybox_hosts():
    """The host processes of this one."""
    found = []
    for pid in children(os.getpid()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[1:2] == [b"host"]:
            found.append(pid)
    return found


if __name__ == "__main__":
    unittest.main()
