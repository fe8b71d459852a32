"""The lines of an MCP client that runs one code action on a server over standard streams."""
import json
import subprocess


def code_action(code):
    """They end with the request 2, whose result is that of the code."""
    def request(number, method, **parameters):
        return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": parameters})

    return [request(1, "initialize", protocolVersion="2025-06-18", capabilities={},
                    clientInfo={"name": "test", "version": "1"}),
            json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}),
            request(2, "tools/call", name="execute_ipython_cell", arguments={"code": code})]


def serve(command, lines, **how):
    """What the server says to these lines by the requests' numbers, up to 2; then it must end well. `how` is that of
    subprocess.Popen."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               **how)
    answers = {}
    try:
        process.stdin.write("".join(f"{line}\n" for line in lines))
        process.stdin.flush()
        while 2 not in answers:
            line = process.stdout.readline()
            assert line, f"the server ended: {process.stderr.read()[-2000:]}"
            said = json.loads(line)
            if "id" in said and "method" not in said:
                answers[said["id"]] = said
        process.stdin.close()
        process.wait(60)
        assert process.returncode == 0, process.stderr.read()[-2000:]
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()
    return answers
