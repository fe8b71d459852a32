// Tool calls from a real kernel to real MCP servers, under approval.
#include <algorithm>
#include <set>

#include "executor_fixture.hpp"

using namespace ipybox;
using namespace std::chrono_literals;
using Status = CodeExecutionResult::Status;
namespace data = boost::unit_test::data;

namespace {
struct ToolsFixture : test::ExecutorFixture {
    ToolsFixture() {
        options.variables["NODE_SERVERS"] = test::node_servers().string();
        options.variables["SUPPORT"] = test::required_environment("IPYBOX_TEST_SUPPORT");
        // The filesystem server writes there, which root starts as another user than the kernel.
        std::filesystem::permissions(workspace.path(), std::filesystem::perms(0777));
        options.variables["TEST_SECRET"] = "s3cr3t-token-value";
    }
    std::vector<std::string> generate(const std::string& name, std::string_view params) {
        return test::run(
            context, executor->generate_mcp_sources(name, parse_json(params, "test").as_object()));
    }
    void generate_everything() {
        generate("everything", R"({"command": "node", "args":
            ["${NODE_SERVERS}/@modelcontextprotocol/server-everything/dist/index.js", "stdio"]})");
    }
    void generate_files() {
        generate("files", R"({"command": "node", "args":
            ["${NODE_SERVERS}/@modelcontextprotocol/server-filesystem/dist/index.js", "${WORKSPACE}"]})");
    }
    // The configurable server of tests/support.
    std::vector<std::string> generate_own(const std::string& flags = "") {
        return generate("own", R"({"command": "python3", "args": ["${SUPPORT}/mcp_server.py")" +
                                   flags + R"(], "env": {"TOKEN": "${TEST_SECRET}"}})");
    }
};

const std::string print_error =
    "from ipybox_kernel import ToolRunnerError, ApprovalRejectedError, ApprovalTimeoutError\n"
    "def attempt(call):\n"
    "    try:\n        print('result:', call())\n"
    "    except Exception as e:\n        print(type(e).__name__, isinstance(e, ToolRunnerError), "
    "e)\n";
}  // namespace

BOOST_FIXTURE_TEST_SUITE(tools, ToolsFixture)

BOOST_DATA_TEST_CASE_F(ToolsFixture, real_servers_answer_with_text_structure_and_images,
                       data::make(test::sandboxes), sandbox) {
    start(sandbox);
    generate_everything();
    generate_files();
    BOOST_TEST(
        text("from mcptools.everything import echo\nprint(echo.run(echo.Params(message='hi')))") ==
        "Echo: hi");
    BOOST_TEST(text("print(await echo.run_async(message='async'))") == "Echo: async");
    BOOST_TEST(text("from mcptools.everything.get_structured_content import run, Params\n"
                    "r = run(Params(location='New York'))\nprint(type(r).__name__, r.temperature)")
                   .starts_with("Result "));
    BOOST_TEST(text("from mcptools.everything.get_tiny_image import run\n"
                    "image = next(p for p in run() if not isinstance(p, str))\n"
                    "print(type(image).__name__, image.mime_type, image.data[:4])") ==
               "Image image/png b'\\x89PNG'");
    const auto shown = execute("image");
    BOOST_TEST_REQUIRE(shown.images.size() == 1u);
    BOOST_TEST(test::read_file(shown.images[0]).starts_with("\x89PNG"));
    text(
        "from mcptools.files import write_file, read_text_file\nwrite_file.run(path='note.txt', "
        "content='from a tool')");
    BOOST_TEST(
        text("print(open('note.txt').read(), '/', read_text_file.run(path='note.txt').content)") ==
        "from a tool / from a tool");
    BOOST_TEST(text("text = ' '.join(echo.run(message=str(i)) for i in range(50)); "
                    "print(len(text.split()))") == "100");
}

BOOST_AUTO_TEST_CASE(media_reach_python_typed) {
    start("bubblewrap");
    generate_everything();
    generate_own();
    text(
        "from ipybox_kernel import media, ToolRunnerError, Audio, Blob, Image, Resource, "
        "ResourceLink\n"
        "from mcptools.own import media as own, picture, structured\n"
        "from mcptools.everything import get_resource_links, get_resource_reference, "
        "get_tiny_image");
    BOOST_TEST(text("a = own.run(kind='audio'); print(a, bytes(a)[:4])") ==
               "Audio(audio/wav, 12 bytes) b'RIFF'");
    const auto heard = execute("a");
    BOOST_TEST_REQUIRE(heard.displays.size() == 1u);
    BOOST_TEST(heard.displays[0].at("audio/wav").as_string() == "UklGRgAAAABXQVZF");
    BOOST_TEST(text("b = own.run(kind='blob'); print(b, b.uri, b.data == bytes(range(256)))") ==
               "Blob(application/octet-stream, 256 bytes) test://blob True");
    BOOST_TEST(text("b") == "Blob(application/octet-stream, 256 bytes)");
    BOOST_TEST(
        text("print(own.run(kind='link'))") ==
        "ResourceLink(uri='test://link', name='link', description=None, mime_type='text/plain', "
        "title='A link', size=7)");
    // What is not what it says stays as it came.
    BOOST_TEST(text("print([type(part).__name__ for part in own.run(kind='broken')])") ==
               "['dict', 'dict', 'dict', 'dict']");
    BOOST_TEST(text("r = own.run(kind='both'); print(r[0], r.structured, media(r))") ==
               "hear [1, None, {'a': 2.5}] [Audio(audio/wav, 12 bytes)]");
    BOOST_TEST(text("print(own.run(kind='null'))") == "None");
    BOOST_TEST(
        text("try: own.run(kind='error')\n"
             "except ToolRunnerError as e: print(e, media(e.content), e.content.structured)") ==
        "see the link [ResourceLink(uri='test://link', name='link', description=None, "
        "mime_type='text/plain', title='A link', size=7)] {'code': 7}");
    BOOST_TEST(
        text("p = picture.run(); print(type(p).__name__, p.width, p.model_dump(), media(p))") ==
        "Result 2 {'width': 2} [Image(image/png, 73 bytes)]");
    for (const char* value : {"[1, 'a', None]", "{'a': {'b': []}}", "1.5", "True"})
        BOOST_TEST(text(std::string("print(structured.run(value=") + value + "))") == value);
    // Real servers.
    BOOST_TEST(
        text("links = get_resource_links.run(count=3); print([type(p).__name__ for p in links])") ==
        "['str', 'ResourceLink', 'ResourceLink', 'ResourceLink']");
    BOOST_TEST(text("parts = get_resource_reference.run(resourceType='Text', resourceId=1)\n"
                    "print([type(p).__name__ for p in parts], media(parts)[0].uri, 'Text' in "
                    "str(media(parts)[0]))")
                   .find("['str', 'Resource', 'str'] demo://resource/dynamic/text/1") == 0u);
    BOOST_TEST(
        text("blob = media(get_resource_reference.run(resourceType='Blob', resourceId=2))[0]\n"
             "print(type(blob).__name__, len(blob) > 0)") == "Blob True");
    // All parts of a result show.
    const auto shown = execute("get_tiny_image.run()");
    BOOST_TEST(shown.images.size() == 1u);
    BOOST_TEST(shown.text.value_or("").find("Here's the image") != std::string::npos,
               shown.text.value_or(""));
}

BOOST_AUTO_TEST_CASE(apis_follow_their_servers_but_not_while_code_runs) {
    // The executor outlives what stands here.
    const auto log = std::make_shared<std::vector<std::string>>();
    options.logger.level = LogLevel::info;
    options.logger.write = [log](LogLevel, std::string_view line) { log->emplace_back(line); };
    start("bubblewrap");
    generate_own();
    BOOST_TEST(text("import os, time\nfrom mcptools.own import "
                    "change_tools\nchange_tools.run(add='extra_new')\n"
                    "time.sleep(1); print('extra_new.py' in os.listdir('mcptools/own'))") ==
               "False");
    const auto module = workspace.path() / "mcptools" / "own" / "extra_new.py";
    const auto wait_for = [&](const std::filesystem::path& file) {
        context.restart();
        const auto limit = Clock::now() + 30s;
        while (!std::filesystem::exists(file) && context.run_one_until(limit) > 0) {
        }
        BOOST_TEST_REQUIRE(std::filesystem::exists(file));
    };
    wait_for(module);
    BOOST_TEST(text("from mcptools.own import extra_new\nprint(extra_new.run())") == "extra_new");
    const auto told = [&](std::string_view what) {
        return std::count_if(log->begin(), log->end(),
                             [&](const auto& line) { return line.find(what) != line.npos; });
    };
    BOOST_TEST(told("the API of MCP server own was written again") == 1);
    // A notice without a change changes nothing; many at once are one.
    text("for i in range(20): change_tools.run()");
    text("for i in range(3): change_tools.run(add=f'extra_more{i}')");
    wait_for(workspace.path() / "mcptools" / "own" / "extra_more2.py");
    BOOST_TEST(told("the API of MCP server own was written again") <= 3);
}

BOOST_DATA_TEST_CASE_F(ToolsFixture, approval_decides_every_call, data::make(test::sandboxes),
                       sandbox) {
    options.approval_timeout = 500ms;
    start(sandbox);
    generate_own();
    const auto seen = stream(print_error +
                                 "from mcptools.own import echo\n"
                                 "attempt(lambda: echo.run(text='first'))\n"
                                 "attempt(lambda: echo.run(text='second'))\n"
                                 "attempt(lambda: echo.run(text='third'))\n",
                             [](const ApprovalRequest& request) {
                                 const auto& text = request.tool_args().at("text").as_string();
                                 if (text == "first") {
                                     request.accept();
                                     request.reject();  // the first answer counts
                                 } else if (text == "second") {
                                     request.reject("not today");
                                 }  // the third is left to expire
                             });
    BOOST_TEST_REQUIRE(seen.result.ok(), seen.result.error);
    BOOST_TEST(seen.requests.at(0) == "own.echo(text='first')");
    BOOST_TEST(seen.requests.size() == 3u);
    BOOST_TEST(seen.chunks.find("result: first") == 0u, seen.chunks);
    BOOST_TEST(
        seen.chunks.find(
            "ApprovalRejectedError True approval request for own.echo rejected: not today") !=
            std::string::npos,
        seen.chunks);
    BOOST_TEST(
        seen.chunks.find("ApprovalTimeoutError True approval request for own.echo expired") !=
            std::string::npos,
        seen.chunks);
}

BOOST_AUTO_TEST_CASE(execute_says_yes_to_questions_but_a_denial_stands) {
    start("none");
    generate_own();
    BOOST_TEST(text("from mcptools.own import echo\nprint(echo.run(text='yes'))") == "yes");
    test::run(context, executor->stop());

    json::object deny, reason;
    reason["reason"] = "closed on Sundays";
    deny["deny"] = reason;
    options.approval = deny;
    start("none");
    generate_own();
    const auto result = execute("from mcptools.own import echo\necho.run(text='x')");
    BOOST_TEST(
        result.error.find(
            "ApprovalRejectedError: approval request for own.echo rejected: closed on Sundays") !=
            std::string::npos,
        result.error);
}

BOOST_AUTO_TEST_CASE(many_approvals_pending_are_answered_in_any_order) {
    start("bubblewrap");
    generate_own();
    std::vector<ApprovalRequest> waiting;
    const auto seen = stream(
        "import asyncio\nfrom mcptools.own import echo\n"
        "r = await asyncio.gather(*(echo.run_async(text=str(i)) for i in range(100)))\nprint(r == "
        "[str(i) for i in range(100)])",
        [&](const ApprovalRequest& request) {
            waiting.push_back(request);
            if (waiting.size() == 100)
                for (auto at = waiting.rbegin(); at != waiting.rend(); ++at) at->accept();
        });
    BOOST_TEST_REQUIRE(seen.result.ok(), seen.result.error);
    BOOST_TEST(seen.chunks == "True\n");
    BOOST_TEST(std::set<std::string>(seen.requests.begin(), seen.requests.end()).size() == 100u);
}

BOOST_AUTO_TEST_CASE(the_end_of_an_execution_withdraws_its_calls) {
    start("bubblewrap");
    generate_own();
    std::optional<ApprovalRequest> late;
    const auto seen = stream(
        "import threading\nfrom mcptools.own import echo\nfrom ipybox_kernel import "
        "ToolRunnerError\nresults = []\n"
        "def background(text):\n"
        "    try:\n        results.append(echo.run(text=text))\n"
        "    except ToolRunnerError as e:\n        results.append(str(e))\n"
        "thread = threading.Thread(target=background, args=('pending',)); thread.start()\n"
        "import time; time.sleep(0.5)",
        [&](const ApprovalRequest& request) { late = request; });
    BOOST_TEST_REQUIRE(seen.result.ok(), seen.result.error);
    BOOST_TEST_REQUIRE(late.has_value());
    late->accept();
    BOOST_TEST(text("thread.join(5); print(results)") ==
               "['the execution ended before this call was answered']");
    // From a thread between cells nothing is even asked.
    text(
        "def later():\n    import time; time.sleep(0.5); background('after the cell')\n"
        "results.clear(); thread = threading.Thread(target=later); thread.start()");
    asio::steady_timer pause(context, 1500ms);
    test::run(context, pause.async_wait(asio::use_awaitable));
    BOOST_TEST(text("print(results)").find("no code is being executed") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(the_tool_socket_takes_nothing_else) {
    start("bubblewrap");
    generate_own();
    text(
        "import os, socket, json\n"
        "def post(body, token=os.environ['IPYBOX_TOOL_TOKEN'], path='/run', method='POST', "
        "head=''):\n"
        "    s = socket.socket(socket.AF_UNIX); s.connect(os.environ['IPYBOX_TOOL_SOCKET']); "
        "s.settimeout(5)\n"
        "    b = body if isinstance(body, bytes) else json.dumps(body).encode()\n"
        "    s.sendall(f'{method} {path} HTTP/1.1\\r\\nHost: x\\r\\n{head}Authorization: Bearer "
        "{token}\\r\\n'\n"
        "              f'Content-Length: {len(b)}\\r\\n\\r\\n'.encode() + b)\n"
        "    data = b''\n"
        "    while b'}' not in data:\n"
        "        more = s.recv(65536)\n        if not more: break\n        data += more\n"
        "    return data.decode()\n"
        "call = {'server_name': 'own', 'tool_name': 'echo', 'tool_args': {'text': 'x'}}");
    BOOST_TEST(text("print(post(call))").find("\"result\":\"x\"") != std::string::npos);
    BOOST_TEST(text("print(post(call, token='0' * 64))").find("HTTP/1.1 401") == 0u);
    for (const char* path : {"'/approve'", "'/approval'", "'/reset'", "'/status'"})
        BOOST_TEST(text(std::string("print(post(call, path=") + path + "))").find("HTTP/1.1 404") ==
                   0u);
    BOOST_TEST(text("print(post(call, method='PUT'))").find("HTTP/1.1 404") == 0u);
    BOOST_TEST(
        text("print(post({**call, 'server_params': {'command': 'touch'}}))").find("unknown key") !=
        std::string::npos);
    BOOST_TEST(text("print(post({**call, 'server_name': 'other'}))").find("registered: own") !=
               std::string::npos);
    BOOST_TEST(text("print(post({**call, 'tool_name': 'nosuch'}))").find("has no tool") !=
               std::string::npos);
    BOOST_TEST(text("print(post({**call, 'tool_name': 'eco'}))").find("did you mean") !=
               std::string::npos);
    BOOST_TEST(text("print(post({**call, 'tool_args': [1]}))").find("must be an object") !=
               std::string::npos);
    BOOST_TEST(
        text("print(post({**call, 'tool_args': {'text': 5}}))").find("do not fit its schema") !=
        std::string::npos);
    BOOST_TEST(text("print(post(b'[' * 100000))").find("nested more than 128") !=
               std::string::npos);
    BOOST_TEST(text("print(post(b'garbage'))").find("error") != std::string::npos);
    BOOST_TEST(
        text("print(post(b'{}', head='Transfer-Encoding: chunked\\r\\n'))").find("HTTP/1.1 4") ==
        0u);
    BOOST_TEST(
        text("s = socket.socket(socket.AF_UNIX); s.connect(os.environ['IPYBOX_TOOL_SOCKET'])\n"
             "s.sendall(b'\\x00' * 20000); print(s.recv(100)[:12])") == "b'HTTP/1.1 400'");
    BOOST_TEST(text("print(post(call))").find("\"result\":\"x\"") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_dying_server_is_a_clear_error_and_starts_again) {
    start("none");
    generate_own();
    text(print_error);
    const auto death = text("from mcptools.own import die, echo\nattempt(lambda: die.run())");
    BOOST_TEST(death.starts_with("ToolRunnerError True"), death);
    BOOST_TEST(death.find("own") != std::string::npos, death);
    BOOST_TEST(text("print(echo.run(text='again'))") == "again");
    const auto refused = text("from mcptools.own import error\nattempt(lambda: error.run())");
    BOOST_TEST(refused.starts_with("ToolRunnerError True"), refused);
}

BOOST_AUTO_TEST_CASE(secrets_stay_on_the_host) {
    start("bubblewrap");
    generate_own();
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(workspace.path() / "mcptools"))
        if (entry.is_regular_file()) {
            const auto source = test::read_file(entry.path());
            BOOST_TEST(source.find("s3cr3t") == std::string::npos);
            BOOST_TEST(source.find("TEST_SECRET") == std::string::npos);
            BOOST_TEST(source.find("mcp_server.py") == std::string::npos);
        }
    BOOST_TEST(text("import os; print([k for k, v in os.environ.items() if 's3cr3t' in v])") ==
               "[]");
    const auto problem = [&](std::string_view params) {
        try {
            generate("other", params);
        } catch (const Error& error) {
            return error.detail();
        }
        return std::string("no error");
    };
    const auto told = problem(R"x({"command": "python3", "args": ["-c",
        "import sys; sys.exit('failing with ${TEST_SECRET}')"]})x");
    BOOST_TEST(told.find("failing with") != std::string::npos, told);
    BOOST_TEST(told.find("s3cr3t") == std::string::npos, told);
    BOOST_TEST(problem(R"({"command": "x", "args": ["${NO_SUCH_VARIABLE}"]})")
                   .find("NO_SUCH_VARIABLE is not set") != std::string::npos);
    BOOST_TEST(
        problem(R"({"command": "no-such-command-anywhere"})").find("no-such-command-anywhere") !=
        std::string::npos);
}

BOOST_AUTO_TEST_CASE(reset_stops_servers_and_they_start_on_the_next_call) {
    start("none");
    generate_own();
    BOOST_TEST(text("from mcptools.own import echo\nprint(echo.run(text='a'))") == "a");
    test::run(context, executor->reset());
    BOOST_TEST(text("from mcptools.own import echo\nprint(echo.run(text='b'))") == "b");
}

BOOST_AUTO_TEST_CASE(an_interrupted_call_is_withdrawn_and_the_next_one_works) {
    start("none");
    generate_own();
    text("from mcptools.own import slow, echo");  // which may take longer than the call is given
    const auto result = execute("slow.run(seconds=30)", 500ms);
    BOOST_TEST(result.status == Status::timed_out);
    BOOST_TEST(text("print(echo.run(text='next'))") == "next");
}

BOOST_AUTO_TEST_CASE(combined_policies_from_configuration) {
    options.approval =
        parse_json(R"({"all_of": ["allow", {"any_of": [{"deny": {}}, "ask"]}]})", "test");
    start("none");
    generate_own();
    const auto seen =
        stream("from mcptools.own import echo\nprint(echo.run(text='x'))", test::accept);
    BOOST_TEST(seen.requests.size() == 1u);
    BOOST_TEST(seen.chunks == "x\n");
    auto changed = options;
    changed.approval = parse_json(R"({"all_of": []})", "test");
    BOOST_CHECK_EXCEPTION(
        CodeExecutor(context.get_executor(), plugins, changed), Error,
        [](const Error& e) { return e.detail().find("approval/all_of") != std::string::npos; });
}

BOOST_DATA_TEST_CASE_F(ToolsFixture, code_finds_tools_and_reads_about_them_without_approval,
                       data::make(test::sandboxes), sandbox) {
    options.approval = "deny";
    start(sandbox);
    generate_own();
    executor->register_server("later", parse_json(R"({"command": "false"})", "test").as_object());
    const auto seen = stream(
        "from ipybox_kernel import tools\n"
        "found = tools.search('put two numbers together', 'sum', limit=2)\n"
        "print(found)\n"
        "print(tools.describe('own.add'))\n"
        "print(tools.stubs('own').splitlines()[1])",
        test::accept);
    BOOST_TEST(seen.result.ok(), seen.result.error);
    BOOST_TEST(seen.requests.empty());
    BOOST_TEST(seen.chunks.starts_with("own.add(a, b) – Adds two numbers.\n"), seen.chunks);
    // Nothing was started for it.
    BOOST_TEST(seen.chunks.find("[not searched, since they were not started yet: later]\n") !=
               std::string::npos);
    BOOST_TEST(seen.chunks.find("mcptools.own.add.run(a: float, b: float) -> {sum}  (reads only)\n"
                                "Adds two numbers.\n") != std::string::npos,
               seen.chunks);
    // As it is, not as a literal, when it is the value of a cell.
    BOOST_TEST(text("tools.search('put two numbers together', limit=1)")
                   .starts_with("own.add(a, b) – Adds two numbers.\n"));
    text(print_error);
    BOOST_TEST(
        text("attempt(lambda: tools.describe('own.ad'))")
            .starts_with("ToolRunnerError True there is no tool \"own.ad\"; nearest: own.add"));
    BOOST_TEST(text("attempt(lambda: tools.stubs('other'))")
                   .find("there is no MCP server \"other\". MCP servers: later, own (") !=
               std::string::npos);
    BOOST_TEST(text("attempt(lambda: tools.search())").starts_with("TypeError False"));
    // What is asked in another form is refused; a call by this name stays none.
    for (const char* wrong :
         {"'search_tools', {}", "'search_tools', {'query': 5}",
          "'search_tools', {'query': 'x', 'limit': 0}",
          "'search_tools', {'query': 'x', 'limit': 51}",
          "'search_tools', {'query': 'x', 'more': 1}", "'describe_tool', {'name': ['own.add']}",
          "'list_stubs', {}", "'run_tool', {'name': 'own.add'}"})
        BOOST_TEST(text("import ipybox_kernel\nattempt(lambda: ipybox_kernel._send('ipybox', " +
                        std::string(wrong) + "))")
                       .starts_with("ToolRunnerError True "));
    // The tool itself is still denied.
    BOOST_TEST(text("from mcptools.own import add\nattempt(lambda: add.run(a=1, b=2))")
                   .starts_with("ApprovalRejectedError"));
}

BOOST_AUTO_TEST_SUITE_END()
