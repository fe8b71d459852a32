"""Event loops, threads, forks, and ends of programs: nothing is left behind."""
import asyncio
import os
import subprocess
import sys
import textwrap
import threading
import time
import unittest

from support import (OWN_SERVER, PYTHON, Workspace, children, environment, is_running, run, wait_until)

import ipybox
from ipybox import BlockingApprovalRequest, BlockingCodeExecutor, CodeExecutionError, CodeExecutor

OPTIONS = {"python": PYTHON, "kernel_init_timeout": 60}


class LoopsTest(Workspace):
    def test_one_loop_after_another_and_beside_each_other(self):
        async def one():
            async with CodeExecutor(**OPTIONS) as box:
                return (await box.execute("6 * 7")).text

        self.assertEqual([asyncio.run(one()) for _ in range(3)], ["42"] * 3)
        found = []
        threads = [threading.Thread(target=lambda: found.append(asyncio.run(one()))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found, ["42"] * 3)

    def test_a_loop_that_ends_without_stop_leaves_the_host_usable(self):
        async def leave():
            box = CodeExecutor(**OPTIONS)
            await box.start()
            return (await box.execute("1")).text

        self.assertEqual(asyncio.run(leave()), "1")
        self.assertEqual(asyncio.run(leave()), "1")

    def test_a_forgotten_executor_ends_its_kernel(self):
        async def forget():
            box = CodeExecutor(**OPTIONS)
            await box.start()
            pid = int((await box.execute("import os; os.getpid()")).text)
            del box
            return pid

        pid = asyncio.run(forget())
        self.assertTrue(wait_until(lambda: not is_running(pid)), "the kernel goes on without its executor")

    def test_shutdown_ends_all_and_a_new_host_starts(self):
        async def stay():
            box = CodeExecutor(**OPTIONS)
            await box.start()
            return box

        box = asyncio.run(stay())
        below = children(os.getpid())
        self.assertTrue(below)
        ipybox.shutdown()
        self.assertTrue(wait_until(lambda: not any(map(is_running, below)), 1.0))
        del box
        self.test_one_loop_after_another_and_beside_each_other()


class BlockingTest(Workspace):
    def test_without_a_loop(self):
        BlockingCodeExecutor.generate_mcp_sources("own", OWN_SERVER, "mcptools")
        with BlockingCodeExecutor(**OPTIONS, sandbox=True) as box:
            self.assertEqual(box.execute("2 + 2").text, "4")
            with self.assertRaisesRegex(CodeExecutionError, "ZeroDivisionError"):
                box.execute("1/0")
            events = []
            for event in box.stream("from mcptools.own import add\nprint(add.run(a=2, b=3).sum)"):
                events.append(event)
                if isinstance(event, BlockingApprovalRequest):
                    self.assertEqual(str(event), "own.add(a=2, b=3)")
                    event.accept(by="test")
            self.assertEqual(events[-1].text, "5")
            self.assertEqual([server.name for server in box.servers()], ["own"])
            for event in box.stream("while True: print(1, flush=True)", chunks=True):
                break
            self.assertEqual(box.execute("1").text, "1")
            threading.Timer(0.3, box.cancel).start()
            self.assertEqual(box.execute("import time; time.sleep(30)").status, "cancelled")

    def test_it_has_every_method(self):
        def public(kind):
            return {name for name in vars(kind) if not name.startswith("_")}

        self.assertEqual(public(CodeExecutor) - public(BlockingCodeExecutor), set())

    def test_ctrl_c_interrupts_the_cell(self):
        program = textwrap.dedent(f"""
            import os, signal, threading
            from ipybox import BlockingCodeExecutor
            with BlockingCodeExecutor(**{OPTIONS!r}) as box:
                threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
                try:
                    box.execute("import time; time.sleep(30)")
                except KeyboardInterrupt:
                    print("interrupted")
                print(box.execute("'alive'").text)
            """)
        done = run([sys.executable, "-c", program], env=environment(), timeout=60)
        self.assertEqual(done.stdout, "interrupted\n'alive'\n")


class ForkTest(Workspace):
    def program(self, body, **how):
        return run([sys.executable, "-W", "error", "-c", textwrap.dedent(body)], env=environment(), timeout=90, **how)

    def test_a_child_has_a_host_of_its_own(self):
        done = self.program(f"""
            import asyncio, os, sys
            from ipybox import CodeExecutor, IpyboxError
            async def text(box): return (await box.execute("6 * 7")).text
            async def one():
                async with CodeExecutor(**{OPTIONS!r}) as box: return await text(box)
            async def main():
                box = CodeExecutor(**{OPTIONS!r})
                await box.start()
                return box
            box = asyncio.run(main())
            pid = os.fork()
            if pid == 0:
                try:
                    asyncio.run(text(box))
                except IpyboxError as error:
                    assert "forked" in str(error), error
                else:
                    os._exit(3)
                sys.exit(0 if asyncio.run(one()) == "42" else 4)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            print(status, asyncio.run(text(box)))
            """)
        self.assertEqual(done.stdout, "0 42\n")

    def test_a_child_does_not_keep_the_host_alive(self):
        """The host sees its input end though the child of a fork lives on."""
        with subprocess.Popen([sys.executable, "-c", textwrap.dedent(f"""
                import asyncio, os, sys, time
                from ipybox import CodeExecutor
                async def main():
                    box = CodeExecutor(**{OPTIONS!r})
                    await box.start()
                    return box
                box = asyncio.run(main())
                child = os.fork()
                if child == 0:
                    time.sleep(60)
                    os._exit(0)
                print(child, flush=True)
                time.sleep(60)
                """)], env=environment(), stdout=subprocess.PIPE, text=True) as program:
            child = int(program.stdout.readline())
            below = [pid for pid in children(program.pid) if pid != child]
            self.assertGreaterEqual(len(below), 2)
            program.kill()
            try:
                self.assertTrue(wait_until(lambda: not any(map(is_running, below)), 3.0), "the host outlives its program")
                self.assertTrue(is_running(child))
            finally:
                os.kill(child, 9)

    def test_multiprocessing(self):
        done = self.program(f"""
            import asyncio, multiprocessing
            from ipybox import CodeExecutor
            async def one():
                async with CodeExecutor(**{OPTIONS!r}) as box: return (await box.execute("6 * 7")).text
            def work(_): return asyncio.run(one())
            if __name__ == "__main__":
                print(work(0), multiprocessing.get_context("fork").Pool(2).map(work, range(3)))
            """)
        self.assertEqual(done.stdout, "42 ['42', '42', '42']\n")


class EndOfProgramTest(Workspace):
    ENDS = {
        "return": "",
        "exception": "raise SystemExit(3)",
        "os._exit": "import os; os._exit(0)",
        "signal": "import os; os.kill(os.getpid(), 9)",
        "thread": "import threading; threading.Thread(target=time.sleep, args=(0.2,)).start()",
    }

    def test_kernels_and_servers_end_with_it(self):
        for name, end in self.ENDS.items():
            with self.subTest(name):
                program = textwrap.dedent(f"""
                    import asyncio, os, time
                    from ipybox import CodeExecutor
                    async def main():
                        box = CodeExecutor(**{OPTIONS!r}, sandbox=True)
                        await box.start()
                        await box.add_server("own", {OWN_SERVER!r})
                        await box.execute("1")
                        return box
                    box = asyncio.run(main())
                    print("ready", flush=True)
                    input()
                    """) + end
                with subprocess.Popen([sys.executable, "-c", program], env=environment(), text=True,
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE) as process:
                    self.assertEqual(process.stdout.readline(), "ready\n", process.poll())
                    below = children(process.pid)
                    self.assertGreaterEqual(len(below), 3)  # host, kernel, server
                    began = time.monotonic()
                    process.stdin.write("\n")
                    process.stdin.flush()
                    _, errors = process.communicate(timeout=30)
                    self.assertNotIn("Traceback", errors)
                    self.assertTrue(wait_until(lambda: not any(map(is_running, below)), 2.0),
                                    f"something outlives the program: {errors}")
                    self.assertLess(time.monotonic() - began, 10)

    def test_an_idle_host_of_another_environment_is_replaced(self):
        """What `${NAME}` stands for is what it is when the executor starts."""
        done = run([sys.executable, "-c", textwrap.dedent(f"""
            import asyncio, os
            from ipybox import CodeExecutor
            async def one():
                server = {{"command": {PYTHON!r}, "args": ["-c", "import sys; sys.exit(sys.argv[1])", "${{WHICH}}"]}}
                async with CodeExecutor(**{OPTIONS!r}) as box:
                    try: await box.add_server("own", server)
                    except Exception as error: print(os.environ["WHICH"] in str(error) or "hidden" in str(error))
            for which in ("first", "second"):
                os.environ["WHICH"] = which
                asyncio.run(one())
                import ipybox._host
                print(ipybox._host._current.environment["WHICH"])
            """)], env=environment(), timeout=60)
        self.assertEqual(done.stdout, "True\nfirst\nTrue\nsecond\n")

    def test_an_idle_host_ends(self):
        done = run([sys.executable, "-c", textwrap.dedent(f"""
            import asyncio, time
            import ipybox._host
            from ipybox import CodeExecutor
            ipybox._host.IDLE_SECONDS = 0.5
            async def one():
                async with CodeExecutor(**{OPTIONS!r}) as box: return (await box.execute("6 * 7")).text
            print(asyncio.run(one()))
            link = ipybox._host._current
            time.sleep(2.5)
            print(link.ended, link._process.poll())
            print(asyncio.run(one()))
            """)], env=environment(), timeout=60)
        self.assertEqual(done.stdout, "42\nTrue 0\n42\n")


if __name__ == "__main__":
    unittest.main()
