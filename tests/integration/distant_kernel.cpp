// What a kernel on another machine gets past its Jupyter messages or through them: files, and tool
// calls over TLS.
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <list>

#include "executor_fixture.hpp"

namespace distant_kernel_tests {

using namespace ipybox;
using namespace std::chrono_literals;

namespace {
bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

// Of this file's tests, for all kernels "elsewhere".
const test::JupyterServer& gateway() {
    static const test::JupyterServer server("gateway");
    return server;
}

struct Keys {
    Keys() {
        for (const char* name : {"good", "other"}) {
            const auto command =
                "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
                "-subj /CN=test "
                "-addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout " +
                file(name, "key") + " -out " + file(name, "pem") + " 2>/dev/null";
            if (std::system(command.c_str()) != 0) throw std::runtime_error("openssl failed");
        }
    }
    std::string file(const std::string& name, const std::string& kind) const {
        return (directory.path() / (name + "." + kind)).string();
    }
    test::TemporaryDirectory directory;
};
const Keys& keys() {
    static const Keys made;
    return made;
}

// Without the fixture's $IPYBOX_TEST_KERNEL: each case says where its kernels are.
struct Place {
    Place() : plugins(test::registry()) {
        if (::geteuid() == 0 && ::chown(workspace.path().c_str(), 65534, 65534) != 0)
            throw std::runtime_error("chown failed");
        options.python = test::kernel_python();
        options.workspace = workspace.path();
        options.kernel_init_timeout = 60s;
        options.sandbox = "none";
        options.approval = "allow";
    }
    ~Place() {
        if (executor) test::run(context, executor->stop());
    }
    void go_elsewhere() {
        options.kernel = "gateway";
        options.kernel_options = gateway().kernel_options();
        options.kernel_options["cwd"] = workspace.path().string();
    }
    void call_over_tls(const std::string& certificate = "good") {
        json::object channel;
        channel["listen"] = "127.0.0.1:0";
        channel["advertise"] = "https://localhost";
        channel["certificate"] = keys().file(certificate, "pem");
        channel["key"] = keys().file("good", "key");
        options.kernel_options["tool_channel"] = channel;
    }
    CodeExecutor& start() {
        executor = std::make_unique<CodeExecutor>(context.get_executor(), plugins, options);
        test::run(context, executor->start());
        return *executor;
    }
    std::string text(std::string code) {
        const auto result = test::run(context, executor->execute(std::move(code), 60s));
        BOOST_TEST_REQUIRE(result.ok(), result.error);
        return result.text.value_or("");
    }
    std::string problem(awaitable<void> work) {
        try {
            test::run(context, std::move(work));
        } catch (const Error& error) {
            return std::string(error.code().message()) + ": " + error.detail();
        }
        return "none";
    }
    std::string upload(std::string path, std::string bytes, bool overwrite = true) {
        return problem(executor->upload(std::move(path), std::move(bytes), overwrite));
    }
    std::string download(std::string path, std::uint64_t offset = 0,
                         std::size_t limit = CodeExecutor::max_file) {
        std::string found;
        const auto work = [&]() -> awaitable<void> {
            const FilePart part = co_await executor->download(path, offset, limit);
            found = part.bytes.size() > 100 ? std::to_string(std::hash<std::string>()(part.bytes))
                                            : part.bytes;
            found += " of " + std::to_string(part.size);
        };
        const auto failed = problem(work());
        return failed == "none" ? found : failed;
    }

    asio::io_context context{1};
    PluginRegistry plugins;
    test::TemporaryDirectory workspace;
    CodeExecutorOptions options;
    std::unique_ptr<CodeExecutor> executor;
};

// What becomes of files that are named well or badly.
std::vector<std::string> use_files(Place& place) {
    std::string bytes(5'000'003, '\0');
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 % 251);
    std::vector<std::string> seen = {
        place.upload("a/b/all.bin", bytes),       place.download("a/b/all.bin"),
        place.download("./a/b/all.bin", 100, 50), place.download("a/b/all.bin", 5'000'000),
        place.download("a/b/all.bin", 6'000'000), place.download("a/b/all.bin", 0, 0)};
    seen.push_back(
        place.text("import hashlib, os; d = open('a/b/all.bin', 'rb').read(); print(len(d), "
                   "hashlib.md5(d).hexdigest())"));
    seen.push_back(
        place.text("os.mkfifo('pipe'); os.symlink('/etc/passwd', 'link'); os.symlink('/tmp', "
                   "'away'); os.mkdir('full'); "
                   "open('full/x', 'w').close(); os.symlink('missing', 'nowhere')"));
    for (const char* path :
         {"missing", "a", "a/missing/x", "pipe", "link", "away/x", "nowhere", "a/b/all.bin/x",
          "../x", "/etc/passwd", "", ".", "a/../b", ".env", "sub/.env"})
        seen.push_back(place.download(path));
    for (const char* path : {"a", "away/x", "a/b/all.bin/x", "link/x", "../x", "/tmp/x", "", ".env",
                             ".git/hooks/x", ".venv/bin/python"})
        seen.push_back(place.upload(path, "planted"));
    // Replaced, not written through.
    for (const char* path : {"link", "pipe", "nowhere", "a/b/all.bin"}) {
        seen.push_back(place.upload(path, "no", false));
        seen.push_back(place.upload(path, "new"));
        seen.push_back(place.download(path));
    }
    seen.push_back(place.upload("empty", ""));
    seen.push_back(place.upload("fresh", "1", false));
    seen.push_back(place.download("empty"));
    seen.push_back(place.upload("long", std::string(CodeExecutor::max_file + 1, ' ')));
    seen.push_back(
        place.text("print(os.path.getsize('/etc/passwd') > 10, sorted(set(os.listdir()) - "
                   "{'.ipybox'}), os.listdir('a/b'), os.path.exists('/tmp/x'))"));
    // Beside a cell that waits for it.
    std::string text;
    const auto work = [&]() -> awaitable<void> {
        auto execution = co_await place.executor->stream(
            "import time\nwhile not os.path.exists('go'): "
            "time.sleep(0.01)\nprint(open('go').read())",
            60s);
        co_await place.executor->upload("go", "gone");
        for (;;) {
            auto event = co_await execution.next();
            if (!event) break;
            if (auto* result = std::get_if<CodeExecutionResult>(&*event))
                text = result->text.value_or(result->error);
        }
    };
    test::run(place.context, work());
    seen.push_back(text);
    return seen;
}

// ---- clients of the tool server ----

using Tcp = asio::ip::tcp;

struct Client {
    Client(asio::io_context& context, const std::string& url)
        : tls(asio::ssl::context::tls_client),
          stream(context, tls),
          port(static_cast<std::uint16_t>(std::stoi(url.substr(url.rfind(':') + 1)))) {}
    awaitable<void> connect() {
        const Tcp::endpoint endpoint(asio::ip::address_v4::loopback(), port);
        co_await stream.next_layer().async_connect(endpoint, asio::use_awaitable);
    }
    awaitable<bool> shake() {
        co_await connect();
        const auto [error] =
            co_await stream.async_handshake(asio::ssl::stream_base::client, as_result);
        co_return !error;
    }
    // An answer, or all that comes until the server closes.
    template <class Stream>
    static awaitable<std::string> rest(Stream& from) {
        std::string text;
        const auto enough = [&text](boost::system::error_code error, std::size_t) -> std::size_t {
            const auto length = text.find("Content-Length: "), end = text.find("\r\n\r\n");
            const bool whole =
                end != text.npos && text.size() >= end + 4 + std::stoul(text.substr(length + 16));
            return error || whole ? 0 : 4096;
        };
        co_await asio::async_read(from, asio::dynamic_buffer(text), enough, as_result);
        co_return text;
    }
    awaitable<std::string> ask(std::string request) {
        const bool shaken = co_await shake();
        if (!shaken) co_return "no handshake";
        co_await asio::async_write(stream, asio::buffer(request), as_result);
        co_return co_await rest(stream);
    }
    asio::ssl::context tls;
    asio::ssl::stream<Tcp::socket> stream;
    std::uint16_t port;
};

std::string call(const std::string& token, const std::string& body,
                 const std::string& line = "POST /run") {
    return line + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token +
           "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}
const std::string unknown_server =
    R"({"server_name": "absent", "tool_name": "x", "tool_args": {}})";

struct Listening {
    Listening() : plugins(test::registry()) {
        host.executor = context.get_executor();
        sandbox = plugins.make<Sandbox>("none", host, json::object{});
        policy = make_policy(plugins, host, "allow");
        options.stranger_timeout = 300ms;
        options.crowded_timeout = 20ms;
        options.max_strangers = 8;
        options.max_request = 1000;
    }
    ToolListener where(const std::string& certificate = "good",
                       const std::string& key = "good") const {
        ToolListener listener;
        listener.address = "127.0.0.1";
        listener.name = "localhost";
        listener.certificate = keys().file(certificate, "pem");
        listener.key = keys().file(key, "key");
        return listener;
    }
    void start() {
        server = std::make_unique<ToolServer>(plugins, host, *sandbox, *policy, options);
        server->begin_execution();
        address = server->listen(where());
    }
    std::string ask(const std::string& request) {
        Client client(context, address.url);
        return test::run(context, client.ask(request));
    }
    asio::io_context context{1};
    PluginRegistry plugins;
    Host host;
    std::unique_ptr<Sandbox> sandbox;
    PolicyPtr policy;
    ToolServerOptions options;
    std::unique_ptr<ToolServer> server;
    ToolServer::TlsAddress address;
};
}  // namespace

BOOST_AUTO_TEST_SUITE(distant_kernel)

BOOST_AUTO_TEST_CASE(files_are_the_same_on_all_backends) {
    Place here, elsewhere;
    here.start();
    BOOST_TEST(here.executor->shares_files());
    const auto expected = use_files(here);
    elsewhere.go_elsewhere();
    BOOST_TEST(contains(elsewhere.options.kernel_options.at("url").as_string(), "http"));
    elsewhere.start();
    BOOST_TEST(!elsewhere.executor->shares_files());
    const auto found = use_files(elsewhere);
    BOOST_TEST(found == expected, boost::test_tools::per_element());
    // The first is no error, and what no code may read or write is one.
    BOOST_TEST(found[0] == "none");
    BOOST_TEST(contains(found[2], " of 5000003"), found[2]);
    const auto count = [&](std::string_view part) {
        return std::count_if(found.begin(), found.end(),
                             [&](const auto& one) { return contains(one, part); });
    };
    BOOST_TEST(count("is protected") == 5);
    BOOST_TEST(count("through a link") == 5);
    BOOST_TEST(count("set overwrite to replace it") == 4);
    BOOST_TEST(count("is no regular file") == 2);
    BOOST_TEST(count("can be uploaded at once") == 1);
    BOOST_TEST(found.back() == "gone");
    test::run(elsewhere.context, elsewhere.executor->stop());
    BOOST_TEST(contains(elsewhere.upload("late", "x"), "none is running"));
}

BOOST_AUTO_TEST_CASE(tools_are_called_over_tls) {
    Place place;
    place.go_elsewhere();
    place.call_over_tls();
    place.options.variables["SUPPORT"] = test::required_environment("IPYBOX_TEST_SUPPORT");
    place.options.approval = parse_json(R"({"first_match": [
        {"rules": [{"name": "no", "when": {"tool": "add"}, "then": "deny"}]}, "allow"]})",
                                        "test");
    place.start();
    const auto params =
        parse_json(R"({"command": "python3", "args": ["${SUPPORT}/mcp_server.py"]})", "test")
            .as_object();
    test::run(place.context, place.executor->generate_mcp_sources("own", params));
    BOOST_TEST(
        place.text(
            "import os\nprint(os.environ['IPYBOX_TOOL_SOCKET'].startswith('https://localhost:'), "
            "'PRIVATE' in open(os.environ['IPYBOX_TOOL_CERTIFICATE']).read())") == "True False");
    BOOST_TEST(place.text("from mcptools.own import add, big, echo\nprint(echo.run(text='hi'), "
                          "len(big.run(size=3_000_000)), "
                          "len(echo.run(text='x' * 3_000_000)))") == "hi 3000000 3000000");
    BOOST_TEST(contains(
        place.text("try: add.run(a=1, b=2)\nexcept Exception as e: print(type(e).__name__)"),
        "ApprovalRejectedError"));
    BOOST_TEST(place.text("import asyncio\nr = await asyncio.gather(*(echo.run_async(text=str(i)) "
                          "for i in range(150)))\n"
                          "print(r == [str(i) for i in range(150)])") == "True");
    BOOST_TEST(place.text("from concurrent.futures import ThreadPoolExecutor\nwith "
                          "ThreadPoolExecutor(20) as pool:\n"
                          "    print(sum(len(x) for x in pool.map(lambda i: echo.run(text='ab'), "
                          "range(100))))") == "200");
    BOOST_TEST(place.text("import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', "
                          "'from mcptools.own import echo; "
                          "print(echo.run(text=\"child\"))'], capture_output=True, text=True, "
                          "env=dict(os.environ, "
                          "PYTHONPATH=os.environ['PYTHONPATH'])).stdout.strip())") == "child");
    // Withdrawn with its cell, and the next call works.
    BOOST_TEST(contains(
        place.text("import threading, time\nfrom mcptools.own import slow\nseen = []\ndef late():\n"
                   "    try: slow.run()\n    except Exception as e: seen.append(str(e))\n"
                   "threading.Thread(target=late).start(); time.sleep(0.5); print('over')"),
        "over"));
    BOOST_TEST(contains(
        place.text("while not seen: time.sleep(0.01)\nprint(seen[0], echo.run(text='next'))"),
        "next"));

    // Somebody else at the address, with a certificate of his own for the same name.
    Listening other;
    const auto false_one = other.where("other", "other");
    other.server = std::make_unique<ToolServer>(other.plugins, other.host, *other.sandbox,
                                                *other.policy, other.options);
    other.server->begin_execution();
    other.address = other.server->listen(false_one);
    const std::string refused =
        "own = os.environ['IPYBOX_TOOL_SOCKET']; os.environ['IPYBOX_TOOL_SOCKET'] = '" +
        other.address.url +
        "'\ndef attempt(call):\n    try: return call()\n    except Exception as e: return e\n"
        "def fresh(result):\n    t = threading.Thread(target=lambda: result.append(attempt(lambda: "
        "echo.run(text='x'))))\n"
        "    t.start(); return t\n"
        "r = []; t = fresh(r)\nwhile t.is_alive(): await asyncio.sleep(0.01)\n"
        "try: await echo.run_async(text='x')\nexcept Exception as e: r.append(e)\n"
        "os.environ['IPYBOX_TOOL_SOCKET'] = own; print(*r, sep='\\n')";
    // Both contexts must run meanwhile.
    CodeExecutionResult result;
    bool done = false;
    const auto work = [&]() -> awaitable<void> {
        result = co_await place.executor->execute(refused, 60s);
        done = true;
    };
    asio::co_spawn(place.context, work(), asio::detached);
    while (!done) {
        place.context.restart();
        place.context.run_for(5ms);
        other.context.restart();
        other.context.run_for(5ms);
    }
    BOOST_TEST_REQUIRE(result.ok(), result.error);
    const auto lines = result.text.value_or("");
    BOOST_TEST(contains(lines, "cannot reach the tool server"), lines);
    BOOST_TEST(contains(lines.substr(0, lines.find('\n')), "certificate verify failed"), lines);
    BOOST_TEST(contains(lines.substr(lines.find('\n') + 1), "certificate verify failed"), lines);
    test::run(place.context, place.executor->reset());
    BOOST_TEST(place.text("from mcptools.own import echo; print(echo.run(text='again'))") ==
               "again");
}

BOOST_AUTO_TEST_CASE(strangers_are_turned_away) {
    Listening place;
    place.start();
    const auto good = [&] { return place.ask(call(place.server->token(), unknown_server)); };
    BOOST_TEST(contains(good(), "no MCP server is registered"));
    BOOST_TEST(place.ask(call(std::string(64, 'a'), unknown_server)).starts_with("HTTP/1.1 401"));
    BOOST_TEST(place.ask(call("", unknown_server)).starts_with("HTTP/1.1 401"));
    BOOST_TEST(place.ask(call(place.server->token(), unknown_server, "GET /run"))
                   .starts_with("HTTP/1.1 404"));
    BOOST_TEST(place.ask(call(place.server->token(), unknown_server, "POST /other"))
                   .starts_with("HTTP/1.1 404"));
    BOOST_TEST(
        place.ask(call(place.server->token(), std::string(2000, ' '))).starts_with("HTTP/1.1 413"));
    BOOST_TEST(place.ask("nonsense\r\n\r\n").starts_with("HTTP/1.1 400"));

    const auto strange = [&]() -> awaitable<void> {
        // HTTP where TLS is spoken.
        Client plain(place.context, place.address.url);
        co_await plain.connect();
        const auto request = call(place.server->token(), unknown_server);
        co_await asio::async_write(plain.stream.next_layer(), asio::buffer(request), as_result);
        const auto answer = co_await Client::rest(plain.stream.next_layer());
        BOOST_TEST(!contains(answer, "HTTP"), answer);
        Client old(place.context, place.address.url);
        SSL_CTX_set_security_level(old.tls.native_handle(), 0);
        SSL_set_security_level(old.stream.native_handle(), 0);
        SSL_set_min_proto_version(old.stream.native_handle(), TLS1_VERSION);
        SSL_set_max_proto_version(old.stream.native_handle(), TLS1_1_VERSION);
        const bool shaken = co_await old.shake();
        BOOST_TEST(!shaken);
        // The silent ones are sent away: before TLS, after it, and in the midst of a head.
        Client silent(place.context, place.address.url), mute(place.context, place.address.url),
            slow(place.context, place.address.url);
        co_await silent.connect();
        const auto nothing = co_await Client::rest(silent.stream.next_layer());
        BOOST_TEST(nothing == "");
        const auto no_answer = co_await mute.ask("");
        BOOST_TEST(no_answer == "");
        const auto half = co_await slow.ask("POST /run HTTP/1.1\r\nAuthor");
        BOOST_TEST(half == "");
    };
    test::run(place.context, strange());

    // A flood of them keeps nobody out.
    std::list<Tcp::socket> flood;
    const Tcp::endpoint endpoint(asio::ip::address_v4::loopback(),
                                 Client(place.context, place.address.url).port);
    for (int i = 0; i < 100; ++i) flood.emplace_back(place.context).connect(endpoint);
    BOOST_TEST(contains(good(), "no MCP server is registered"));
    // Who has presented the token may take its time.
    const auto patient = [&]() -> awaitable<void> {
        Client client(place.context, place.address.url);
        const bool shaken = co_await client.shake();
        BOOST_TEST(shaken);
        const auto request = call(place.server->token(), unknown_server);
        for (int i = 0; i < 2; ++i) {
            co_await asio::async_write(client.stream, asio::buffer(request), as_result);
            const auto answer = co_await Client::rest(client.stream);
            BOOST_TEST(contains(answer, "no MCP server is registered"));
            const auto later = Clock::now() + 2 * place.options.stranger_timeout;
            co_await sleep_until(later);
        }
    };
    test::run(place.context, patient());
    place.server.reset();
    place.context.run_for(20ms);
}

BOOST_AUTO_TEST_CASE(wrong_settings_are_one_error) {
    Listening place;
    const auto problem = [&](auto change) -> std::string {
        auto where = place.where();
        change(where);
        ToolServer server(place.plugins, place.host, *place.sandbox, *place.policy, place.options);
        try {
            server.listen(where);
        } catch (const Error& error) {
            return error.detail();
        }
        return "none";
    };
    const auto expect = [](const std::string& found, const std::string& field,
                           const std::string& why) {
        BOOST_TEST(found.starts_with("tool_channel/" + field + ": "), found);
        BOOST_TEST(contains(found, why), found);
    };
    const auto key = keys().file("good", "key");
    expect(problem([](auto& w) { w.certificate = "/nonexistent.pem"; }), "certificate",
           "/nonexistent.pem");
    expect(problem([&](auto& w) { w.certificate = key; }), "certificate", key);
    expect(problem([](auto& w) { w.key = "/nonexistent.key"; }), "key", "/nonexistent.key");
    expect(problem([](auto& w) { w.key = keys().file("other", "key"); }), "key", "mismatch");
    expect(problem([](auto& w) { w.name = "example.org"; }), "certificate",
           "not made out to example.org");
    expect(problem([](auto& w) { w.address = "203.0.113.1"; }), "listen", "203.0.113.1");
    BOOST_TEST(problem([](auto& w) { w.name = "127.0.0.1"; }) == "none");
    // A key with a passphrase is refused, and nobody is asked for it.
    const auto locked = keys().file("locked", "key");
    const auto lock =
        "openssl ec -aes256 -passout pass:secret -in " + key + " -out " + locked + " 2>/dev/null";
    BOOST_TEST_REQUIRE(std::system(lock.c_str()) == 0);
    expect(problem([&](auto& w) { w.key = locked; }), "key", "passphrase");

    const auto configured = [](auto change) -> std::string {
        Place other;
        other.go_elsewhere();
        other.call_over_tls();
        change(other.options.kernel_options);
        try {
            other.start();
        } catch (const Error& error) {
            return error.detail();
        }
        return "none";
    };
    const auto set = [](json::object& options, const char* field, const char* value) {
        options["tool_channel"].as_object()[field] = value;
    };
    for (const char* value :
         {"localhost:1", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", ":1", ""})
        BOOST_TEST(
            contains(configured([&](auto& o) { set(o, "listen", value); }), "tool_channel/listen"),
            value);
    for (const char* value :
         {"http://localhost", "https://localhost/x", "https://u:p@localhost", "localhost", ""})
        BOOST_TEST(contains(configured([&](auto& o) { set(o, "advertise", value); }),
                            "tool_channel/advertise"),
                   value);
    BOOST_TEST(contains(configured([&](auto& o) { set(o, "key", "/nonexistent"); }),
                        "tool_channel/key: /nonexistent"));
    BOOST_TEST(contains(configured([](auto& o) {
                            o.erase("url");
                            o.erase("token");
                        }),
                        "needs \"url\""));
    BOOST_TEST(
        contains(configured([](auto& o) { o["tool_channel"].as_object().erase("key"); }), "key"));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace distant_kernel_tests
