// Kernels behind real Jupyter servers: started here, and reached by URL.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/write.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/jupyter/websocket.hpp>
#include <ipybox/registry.hpp>
#include <ipybox/remote_kernel.hpp>
#include <list>

#include "deaf_jupyter_server.hpp"
#include "jupyter_server.hpp"
#include "test_support.hpp"

namespace plugin_kernel_gateway_tests {

using namespace ipybox;
using namespace ipybox::test;
using namespace std::chrono_literals;

namespace {
bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

struct Cell {
    std::string out, err;
    std::vector<Display> displays;
    std::optional<PythonError> error;
    bool ok = false;
};

awaitable<Cell> finish(Kernel& kernel) {
    Cell cell;
    for (;;) {
        const auto soon = Clock::now() + 60s;
        auto output = co_await kernel.next(soon);
        if (!output) throw std::runtime_error("the cell hangs");
        if (auto* stream = std::get_if<Stream>(&*output)) {
            (stream->is_stderr ? cell.err : cell.out) += stream->text;
        } else if (auto* display = std::get_if<Display>(&*output)) {
            cell.displays.push_back(std::move(*display));
        } else if (auto* error = std::get_if<PythonError>(&*output)) {
            cell.error = std::move(*error);
        } else {
            cell.ok = std::get<Done>(*output).ok;
            co_return cell;
        }
    }
}

awaitable<void> begin(Kernel& kernel, std::string code) {
    ExecuteRequest request;
    request.code = std::move(code);
    co_await kernel.execute(std::move(request));
}

awaitable<Cell> run_cell(Kernel& kernel, std::string code) {
    co_await begin(kernel, std::move(code));
    co_return co_await finish(kernel);
}

awaitable<void> pause_for(Duration time) { return sleep_until(Clock::now() + time); }

RemoteKernel& as_remote(Kernel& kernel) { return dynamic_cast<RemoteKernel&>(kernel); }

// A host with one backend, and a library of its own to deliver.
struct Machine {
    explicit Machine(json::object config, std::string sandbox_name = "none")
        : remote(config.contains("url")), name(std::move(sandbox_name)) {
        host.executor = context.get_executor();
        registry.add_directory(plugin_directory());
        sandbox = registry.make<Sandbox>(name, host, json::object{});
        backend = registry.make<KernelBackend>("gateway", host, config);
        if (::geteuid() == 0 && ::chown(workspace.path().c_str(), 65534, gid_t(-1)) != 0)
            throw std::runtime_error("chown failed");
        std::filesystem::copy(python_package() / "ipybox_kernel", library.path() / "ipybox_kernel");
        std::filesystem::remove_all(library.path() / "ipybox_kernel" / "__pycache__");
    }

    KernelSpec spec() {
        KernelSpec spec;
        spec.logger = log;
        Channel package;
        package.name = "lib";
        package.host_path = library.path();
        spec.extensions = {"ipybox_kernel"};
        spec.init_timeout = 60s;
        if (remote) {
            spec.policy.env["PYTHONPATH"] = library.path();
            Channel tools;
            tools.name = "tools";
            tools.kind = Channel::Kind::socket;
            tools.host_path = workspace.path() / "tools";
            spec.policy.env["TOOLS"] = tools.host_path;
            spec.channels = {package, tools};
            return spec;
        }
        spec.python = kernel_python();
        spec.policy.cwd = workspace.path();
        spec.policy.env["PATH"] = "/usr/bin:/bin";
        spec.policy.env["PYTHONPATH"] = sandbox->guest_address(spec.policy, package);
        if (name == "none") {
            spec.policy.network.mode = NetworkPolicy::Mode::full;
        } else {
            spec.policy.env["HOME"] = "/home/user";
            spec.policy.readable.push_back(kernel_python().parent_path().parent_path());
            spec.policy.writable.push_back(workspace.path());
        }
        spec.channels.push_back(std::move(package));
        return spec;
    }

    template <class Body>
    void with_kernel(Body body) {
        const auto work = [&]() -> awaitable<void> {
            auto kernel = co_await backend->start(*sandbox, spec());
            co_await body(*kernel);
            co_await kernel->shutdown();
            BOOST_TEST(!kernel->alive());
        };
        run(context, work());
    }

    Error start_error() {
        try {
            with_kernel([](Kernel&) -> awaitable<void> { co_return; });
        } catch (const Error& error) {
            return error;
        }
        throw std::runtime_error("the kernel started");
    }

    asio::io_context context{1};
    TemporaryDirectory workspace, library;
    Host host;
    Logger log;
    PluginRegistry registry;
    std::unique_ptr<Sandbox> sandbox;
    std::unique_ptr<KernelBackend> backend;
    bool remote;
    std::string name;
};

// Stands between host and server, and breaks when told.
class Wire {
public:
    using Tcp = asio::ip::tcp;
    Wire(asio::io_context& context, const std::string& port)
        : context_(context), acceptor_(context, {asio::ip::address_v4::loopback(), 0}) {
        lead_to(port);
        asio::co_spawn(context, accept(), asio::detached);
    }
    ~Wire() {
        acceptor_.close();
        break_all();
        context_.run_for(10ms);
    }
    std::string url() const {
        return "http://127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port());
    }
    // From now on, another server is there.
    void lead_to(const std::string& port) {
        server_ = Tcp::endpoint(asio::ip::address_v4::loopback(),
                                static_cast<std::uint16_t>(std::stoi(port)));
        break_all();
    }
    // Connections break now, and new ones do until the time is over.
    void cut(Duration time) {
        cut_until_ = Clock::now() + time;
        break_all();
        ++cuts;
    }
    int cuts = 0;

private:
    struct Pair {
        explicit Pair(asio::io_context& context) : near(context), far(context) {}
        void close() {
            boost::system::error_code ignored;
            near.close(ignored);
            far.close(ignored);
        }
        Tcp::socket near, far;
    };
    void break_all() {
        for (const auto& weak : pairs_)
            if (const auto pair = weak.lock()) pair->close();
        pairs_.clear();
    }
    awaitable<void> accept() {
        for (;;) {
            auto pair = std::make_shared<Pair>(context_);
            const auto [error] = co_await acceptor_.async_accept(pair->near, as_result);
            if (error) co_return;
            if (Clock::now() < cut_until_) continue;
            const auto [refused] = co_await pair->far.async_connect(server_, as_result);
            if (refused) continue;
            pairs_.push_back(pair);
            asio::co_spawn(context_, copy(pair, pair->near, pair->far), asio::detached);
            asio::co_spawn(context_, copy(pair, pair->far, pair->near), asio::detached);
        }
    }
    static awaitable<void> copy(std::shared_ptr<Pair> pair, Tcp::socket& from, Tcp::socket& to) {
        std::string buffer(1 << 16, '\0');
        for (;;) {
            const auto [error, size] =
                co_await from.async_read_some(asio::buffer(buffer), as_result);
            if (error) break;
            const auto piece = asio::buffer(buffer.data(), size);
            const auto [broken, written] = co_await asio::async_write(to, piece, as_result);
            if (broken) break;
        }
        pair->close();
    }
    asio::io_context& context_;
    Tcp::acceptor acceptor_;
    Tcp::endpoint server_;
    std::list<std::weak_ptr<Pair>> pairs_;
    Clock::time_point cut_until_{};
};

// What every kernel must do, wherever it is.
awaitable<void> everyday(Kernel& kernel) {
    auto cell =
        co_await run_cell(kernel, "import sys\nprint('out'); print('err', file=sys.stderr)\n6 * 7");
    BOOST_TEST(cell.ok);
    BOOST_TEST(cell.out == "out\n");
    BOOST_TEST(cell.err == "err\n");
    BOOST_TEST_REQUIRE(cell.displays.size() == 1U);
    BOOST_TEST(cell.displays[0].is_result);
    BOOST_TEST((cell.displays[0].data.at("text/plain") == "42"));
    cell = co_await run_cell(kernel, "print('ä😀')\n1 / 0");
    BOOST_TEST(!cell.ok);
    BOOST_TEST(cell.out == "ä😀\n");
    BOOST_TEST(cell.error.value().name == "ZeroDivisionError");
    cell = co_await run_cell(kernel, "!echo from a shell");
    BOOST_TEST(cell.out.starts_with("from a shell"));

    // More, and faster, than servers let through by themselves.
    cell = co_await run_cell(kernel, "for i in range(100_000): print(i)\nprint('x' * 10_000_000)");
    std::string expected;
    for (int i = 0; i < 100'000; ++i) expected += std::to_string(i) + "\n";
    BOOST_TEST((cell.out == expected + std::string(10'000'000, 'x') + "\n"));
    BOOST_TEST(cell.err == "");
    cell = co_await run_cell(kernel, "for i in range(3_500): display(i)");
    BOOST_TEST(cell.displays.size() == 3500U);

    co_await begin(kernel, "import time\nprint('begun', flush=True)\ntime.sleep(60)");
    const auto soon = Clock::now() + 30s;
    const auto first = co_await kernel.next(soon);
    BOOST_TEST((std::get<Stream>(first.value()).text == "begun\n"));
    co_await kernel.interrupt();
    cell = co_await finish(kernel);
    BOOST_TEST(cell.error.value().name == "KeyboardInterrupt");
    cell = co_await run_cell(kernel, "print('usable')");
    BOOST_TEST(cell.out == "usable\n");
}

awaitable<void> one_cell(Kernel& kernel) {
    const auto cell = co_await run_cell(kernel, "print(1)");
    BOOST_TEST(cell.out == "1\n");
}

// Longer outages, and all of what is alike.
bool thorough() { return std::getenv("IPYBOX_TEST_FULL") != nullptr; }

// One for all that need nothing special. It starts beside the first test.
const JupyterServer& common(const std::string& kind) {
    static const JupyterServer server("server"), gateway("gateway");
    return kind == "server" ? server : gateway;
}

std::string script(const std::string& code) {
    const auto command = kernel_python().string() + " -c \"" + code + "\"";
    if (std::system(command.c_str()) != 0) throw std::runtime_error("failed: " + command);
    return {};
}
}  // namespace

BOOST_AUTO_TEST_SUITE(jupyter_websocket)

BOOST_AUTO_TEST_CASE(messages_survive_both_framings) {
    jupyter::OutgoingMessage message;
    message.channel = "shell";
    message.header = R"({"msg_id":"a","msg_type":"t"})";
    message.content = R"({"x":1})";
    for (const std::size_t buffers : {0U, 1U, 3U}) {
        message.buffers.assign(buffers, std::string("\0\xff", 2));
        const jupyter::WireLimits limits;
        const auto v1 = jupyter::encode_v1(message), text = jupyter::encode_json(message);
        BOOST_TEST(text.binary == (buffers > 0));
        auto first = jupyter::decode_v1(v1.bytes, limits),
             second = jupyter::decode_json(text.bytes, text.binary, limits);
        for (auto* read : {&first, &second}) {
            BOOST_TEST_REQUIRE(read->has_value());
            auto& one = **read;
            BOOST_TEST(one.channel == "shell");
            BOOST_TEST(one.id == "a");
            BOOST_TEST(one.type == "t");
            BOOST_TEST_REQUIRE(one.buffers.size() == buffers);
            for (const auto buffer : one.buffers)
                BOOST_TEST(buffer == std::string_view("\0\xff", 2));
            const auto content = one.read_content(jupyter::WireLimits());
            BOOST_TEST_REQUIRE(content.has_value());
            BOOST_TEST((content->at("x") == 1));
        }
    }
}

BOOST_AUTO_TEST_CASE(malformed_frames_are_refused) {
    jupyter::OutgoingMessage message;
    message.channel = "iopub";
    message.header = R"({"msg_id":"a","msg_type":"t"})";
    message.content = "{}";
    message.buffers = {"data"};
    const jupyter::WireLimits limits;
    const auto whole = jupyter::encode_v1(message).bytes,
               text = jupyter::encode_json(message).bytes;
    // Cut short anywhere, or with any byte of the offsets changed: an error or a message, no more.
    for (std::size_t size = 0; size < whole.size() - 4; ++size)
        BOOST_TEST(!jupyter::decode_v1(whole.substr(0, size), limits));
    for (std::size_t size = 0; size < text.size() - 4; ++size)
        BOOST_TEST(!jupyter::decode_json(text.substr(0, size), true, limits));
    for (std::size_t at = 0; at < 64; ++at)
        for (const char byte : {'\0', '\1', '\x7f', '\xff'}) {
            auto changed = whole, other = text;
            changed[at] = byte;
            other[at % 12] = byte;
            const auto one = jupyter::decode_v1(changed, limits);
            const auto two = jupyter::decode_json(other, true, limits);
            BOOST_TEST((!one || one->type.size() <= 100));
            BOOST_TEST((!two || two->type.size() <= 100));
        }
    BOOST_TEST(!jupyter::decode_json("[]", false, limits));
    BOOST_TEST(!jupyter::decode_json("{}", false, limits));
    jupyter::WireLimits small;
    small.bytes = 10;
    BOOST_TEST((jupyter::decode_v1(whole, small).error() == jupyter::WireFault::too_large));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(kernel_gateway)

BOOST_AUTO_TEST_CASE(a_gateway_of_its_own_in_a_sandbox) {
    common("server");
    std::vector<const char*> sandboxes = {"bubblewrap"};
    if (thorough()) sandboxes.push_back("none");
    for (const char* sandbox : sandboxes) {
        BOOST_TEST_CONTEXT(sandbox) {
            Machine machine(json::object{}, sandbox);
            machine.with_kernel(everyday);
        }
    }
}

BOOST_AUTO_TEST_CASE(servers_on_other_machines) {
    std::vector<const char*> kinds = {"server"};
    if (thorough()) kinds.push_back("gateway");
    for (const char* kind : kinds) {
        BOOST_TEST_CONTEXT(kind) {
            Machine machine(common(kind).kernel_options());
            machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
                BOOST_TEST(!as_remote(kernel).id().empty());
                co_await everyday(kernel);
            });
        }
    }
}

BOOST_AUTO_TEST_CASE(a_server_without_the_subprotocol) {
    const JupyterServer server("server", {"--ZMQChannelsWebsocketConnection.kernel_ws_protocol="});
    Machine machine(server.kernel_options());
    machine.with_kernel(everyday);
}

BOOST_AUTO_TEST_CASE(what_a_server_wants_besides_a_token) {
    // No token: then the server wants its cookie back in a header.
    const JupyterServer open("server", {"--ServerApp.base_url=/user/me/"}, kernel_python(), "");
    TemporaryDirectory keys;
    const auto cert = (keys.path() / "cert.pem").string(), key = (keys.path() / "key.pem").string();
    const auto make =
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "
        "/CN=localhost -addext "
        "subjectAltName=DNS:localhost -keyout " +
        key + " -out " + cert + " 2>/dev/null";
    BOOST_TEST_REQUIRE(std::system(make.c_str()) == 0);
    const JupyterServer secure("gateway", {"--cert", cert, "--key", key});
    json::object config;
    config["url"] = open.url() + "/user/me/";
    Machine(config).with_kernel(one_cell);
    config = secure.kernel_options();
    config["url"] = "https://localhost:" + secure.port();
    auto error = Machine(config).start_error();
    BOOST_TEST(contains(error.detail(), "certificate"), error.detail());
    config["ca_file"] = cert;
    Machine(config).with_kernel(one_cell);
    config["url"] = "https://127.0.0.1:" + secure.port();
    error = Machine(config).start_error();
    BOOST_TEST(contains(error.detail(), "use the name that the certificate was made for"),
               error.detail());
}

BOOST_AUTO_TEST_CASE(a_start_that_fails_says_why) {
    const JupyterServer& server = common("gateway");
    const auto problem = [&](auto change) {
        auto config = server.kernel_options();
        config["retry_interval"] = 0.01;
        config["connect_retries"] = 2;
        change(config);
        const auto error = Machine(config).start_error();
        BOOST_TEST((error.code() == errc::kernel_start_failed), error.what());
        BOOST_TEST(!contains(error.detail(), JupyterServer::token));
        return error.detail();
    };
    const auto without = problem([](auto& c) { c.erase("token"); });
    BOOST_TEST(contains(without, "wants a token"), without);
    const auto wrong = problem([](auto& c) { c["token"] = "wrong-one"; });
    BOOST_TEST(contains(wrong, "set \"token\" to a valid one"), wrong);
    BOOST_TEST(!contains(wrong, "wrong-one"));
    const auto path = problem([&](auto& c) { c["url"] = server.url() + "/elsewhere"; });
    BOOST_TEST(contains(path, "check the URL's path"), path);
    const auto port = problem([](auto& c) { c["url"] = "http://127.0.0.1:1"; });
    BOOST_TEST(contains(port, "is the server running?"), port);
    const auto name = problem([](auto& c) { c["kernel_name"] = "no-such-kernel"; });
    BOOST_TEST(contains(name, "did not start a kernel"), name);
    BOOST_CHECK_THROW(problem([](auto& c) { c["url"] = "127.0.0.1"; }), Error);
}

// What kernels of a server have in their TMPDIR.
std::vector<std::filesystem::path> directories(const JupyterServer& server) {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(server.home()))
        if (entry.path().filename().string().starts_with("ipybox-kernel-"))
            found.push_back(entry.path());
    return found;
}
// The search for what others left goes on beside the first cells: does it once more, and waits.
constexpr const char* look_for_abandoned =
    "import os; from ipybox_kernel.link import remove_abandoned\n"
    "remove_abandoned(*os.path.split(os.path.dirname(os.environ['TOOLS']))); print('done')";

BOOST_AUTO_TEST_CASE(the_end_of_a_kernel_is_reported) {
    const JupyterServer server("gateway");
    auto config = server.kernel_options();
    config["ping_interval"] = 0.5;
    Machine machine(config);
    std::string id;
    const auto ending = [&](std::string code, std::function<void()> meanwhile,
                            std::string& output) {
        std::string detail;
        machine.with_kernel([&](Kernel& kernel) -> awaitable<void> {
            id = as_remote(kernel).id();
            co_await begin(kernel, std::move(code));
            try {
                const auto soon = Clock::now() + 30s;
                const auto first = co_await kernel.next(soon);
                output = std::get<Stream>(first.value()).text;
                if (meanwhile) meanwhile();
                // A kernel that is asked to end may end its cell first.
                for (;;) {
                    const auto item = co_await kernel.next(soon);
                    if (!item) break;
                    if (std::holds_alternative<Done>(*item))
                        co_await begin(kernel, "import time; time.sleep(60)");
                }
            } catch (const Error& error) {
                BOOST_TEST((error.code() == errc::kernel_died), error.what());
                detail = error.detail();
            }
            BOOST_TEST(!kernel.alive());
        });
        return detail;
    };
    std::string output;
    const auto died = ending(
        "import os, time\nprint('last', flush=True); time.sleep(0.3)\nos.kill(os.getpid(), 9)", {},
        output);
    BOOST_TEST(output == "last\n");
    BOOST_TEST(contains(died, "reset() starts a new kernel"), died);

    // The next kernel removes what that one left, and nothing else.
    const auto left = directories(server);
    BOOST_TEST_REQUIRE(left.size() == 1U);
    const auto other = [&](const char* name) {
        return server.home() / (std::string("ipybox-kernel-") + name);
    };
    for (const char* name : {"elsewhere", "open", "new"})
        std::filesystem::create_directory(other(name));
    std::filesystem::rename(other("elsewhere"), server.home() / "elsewhere");
    std::filesystem::create_symlink(server.home() / "elsewhere", other("link"));
    for (const auto& path : {server.home() / "elsewhere", other("open")})
        write_file(path / "kept", "");
    std::filesystem::permissions(other("open"), std::filesystem::perms(0755));
    std::filesystem::permissions(other("new"), std::filesystem::perms(0700));
    machine.with_kernel([&](Kernel& first) -> awaitable<void> {
        const auto soon = Clock::now() + 20s;
        while (std::filesystem::exists(left[0]) && Clock::now() < soon) co_await pause_for(20ms);
        BOOST_TEST(!std::filesystem::exists(left[0]));
        BOOST_TEST(directories(server).size() == 4U);  // this kernel's, and the three
        KernelSpec spec = machine.spec();
        auto second = co_await machine.backend->start(*machine.sandbox, std::move(spec));
        auto cell = co_await run_cell(*second, look_for_abandoned);
        BOOST_TEST(cell.out == "done\n");
        cell = co_await run_cell(
            first, "import os; print(os.listdir(os.path.dirname(os.environ['TOOLS'])))");
        BOOST_TEST(contains(cell.out, "lib"), cell.out);
        co_await second->shutdown();
    });
    BOOST_TEST(std::filesystem::exists(server.home() / "elsewhere" / "kept"));
    BOOST_TEST(directories(server).size() == 3U);

    const auto culled = ending(
        "import time\nprint('here', flush=True)\ntime.sleep(60)",
        [&] {
            script("import urllib.request as r; r.urlopen(r.Request('" + server.url() +
                   "/api/kernels/" + id + "', method='DELETE', headers={'Authorization': 'token " +
                   JupyterServer::token + "'}))");
        },
        output);
    BOOST_TEST(contains(culled, "reset() starts a new kernel"), culled);
}

BOOST_AUTO_TEST_CASE(a_server_that_goes_is_one_error_or_none) {
    JupyterServer server("gateway");
    const JupyterServer another_token("gateway", {}, kernel_python(), "another-token");
    auto config = server.kernel_options();
    config["reconnect_timeout"] = 20;
    const auto fails = [&](std::function<void(Wire&)> meanwhile) {
        std::string detail;
        config["url"] = "http://127.0.0.1:1";
        Machine machine(config);
        Wire wire(machine.context, server.port());
        config["url"] = wire.url();
        machine.backend = machine.registry.make<KernelBackend>("gateway", machine.host, config);
        machine.with_kernel([&](Kernel& kernel) -> awaitable<void> {
            co_await begin(kernel, "import time\ntime.sleep(60)");
            meanwhile(wire);
            try {
                const auto soon = Clock::now() + 30s;
                co_await kernel.next(soon);
            } catch (const Error& error) {
                BOOST_TEST((error.code() == errc::kernel_died), error.what());
                detail = error.detail();
            }
        });
        return detail;
    };
    // Restarted at the same place, it knows no kernels.
    const auto restarted = fails([&](Wire& wire) { wire.lead_to(common("gateway").port()); });
    BOOST_TEST(contains(restarted, "does not know the kernel any more"), restarted);
    // The token is revoked: it counts when a connection is made.
    const auto revoked = fails([&](Wire& wire) { wire.lead_to(another_token.port()); });
    BOOST_TEST(contains(revoked, "set \"token\" to a valid one"), revoked);
    config["reconnect_timeout"] = 0.5;
    const auto gone = fails([&](Wire&) { server.kill(); });
    BOOST_TEST(contains(gone, "could not be made again"), gone);
}

BOOST_AUTO_TEST_CASE(a_broken_connection_loses_nothing) {
    std::vector<const char*> kinds = {"server"};
    if (thorough()) kinds.push_back("gateway");
    for (const char* kind : kinds) {
        BOOST_TEST_CONTEXT(kind) {
            const JupyterServer& server = common(kind);
            auto config = server.kernel_options();
            config["url"] = "http://127.0.0.1:1";
            std::unique_ptr<Wire> wire;
            // The wire needs the machine's context, the machine the wire's address.
            Machine machine(config);
            wire = std::make_unique<Wire>(machine.context, server.port());
            config["url"] = wire->url();
            machine.backend = machine.registry.make<KernelBackend>("gateway", machine.host, config);
            const Duration outage = thorough() ? Duration(10s) : Duration(600ms);
            machine.with_kernel([&](Kernel& kernel) -> awaitable<void> {
                // Output all the while, much of it on its way when the connection breaks.
                co_await begin(kernel,
                               "import time\nfor i in range(200_000):\n    print(i)\n"
                               "    if i % 1000 == 0: time.sleep(0.005)\n");
                std::string output, expected;
                for (int i = 0; i < 200'000; ++i) expected += std::to_string(i) + "\n";
                bool done = false;
                std::size_t next_cut = 50'000;
                while (!done) {
                    const auto soon = Clock::now() + 60s;
                    auto item = co_await kernel.next(soon);
                    BOOST_TEST_REQUIRE(item.has_value());
                    if (const auto* stream = std::get_if<Stream>(&*item)) output += stream->text;
                    done = std::holds_alternative<Done>(*item);
                    if (output.size() > next_cut && wire->cuts < 3) {
                        wire->cut(wire->cuts == 0 ? outage : Duration(50ms));
                        next_cut += 300'000;
                    }
                }
                BOOST_TEST(wire->cuts == 3);
                BOOST_TEST((output == expected));
                // The request is lost, or its reply.
                for (int i = 0; i < 10; ++i) {
                    if (i % 2 == 0) wire->cut(20ms);
                    co_await begin(kernel, "print(" + std::to_string(i) + ")");
                    if (i % 2 == 1) wire->cut(20ms);
                    const auto cell = co_await finish(kernel);
                    BOOST_TEST(cell.out == std::to_string(i) + "\n");
                }
                const auto cell = co_await run_cell(kernel, "print('usable')");
                BOOST_TEST(cell.out == "usable\n");
            });
            wire.reset();
        }
    }
}

// Bytes of memory that this process had at most since the last call.
std::size_t peak_memory() {
    std::size_t kilobytes = 0;
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;)
        if (word == "VmHWM:") status >> kilobytes;
    std::ofstream("/proc/self/clear_refs") << "5";
    return kilobytes << 10;
}

// Why the kernel ends while a cell of it runs.
awaitable<std::string> given_up(Kernel& kernel, errc expected, Duration patience) {
    std::string detail;
    try {
        const auto soon = Clock::now() + patience;
        const auto output = co_await kernel.next(soon);
        BOOST_ERROR("the cell goes on");
    } catch (const Error& error) {
        BOOST_TEST((error.code() == expected), error.what());
        detail = error.detail();
    }
    co_return detail;
}

// What goes again is megabytes, the request for it a few hundred bytes.
BOOST_AUTO_TEST_CASE(a_server_that_reads_nothing_is_given_up) {
    json::object config;
    config["url"] = "http://127.0.0.1:1";
    Machine machine(config);
    DeafJupyterServer server(machine.context);
    config["url"] = server.url();
    std::vector<std::string> warnings;
    machine.backend = machine.registry.make<KernelBackend>("gateway", machine.host, config);
    machine.log.write = [&](LogLevel, std::string_view line) { warnings.emplace_back(line); };
    machine.with_kernel([&](Kernel& kernel) -> awaitable<void> {
        const std::string code = "#" + std::string(6 << 20, 'x');
        co_await begin(kernel, code);
        peak_memory();
        const auto before = peak_memory();
        server.attacking = true;
        const auto detail = co_await given_up(kernel, errc::kernel_protocol, 60s);
        BOOST_TEST(contains(detail, "32 MiB unread"), detail);
        BOOST_TEST(contains(detail, "on 3 connections"), detail);
        BOOST_TEST(contains(detail, "reset() starts a new kernel"), detail);
        BOOST_TEST(server.connections == 3);
        BOOST_TEST(server.rounds < DeafJupyterServer::most_rounds);
        const auto more = peak_memory() - before;
#ifndef IPYBOX_TEST_KEEPS_MEMORY
        BOOST_TEST(more < std::size_t{96} << 20);
#endif
        BOOST_TEST_MESSAGE("bytes more: " << more);
    });
    BOOST_TEST(std::count_if(warnings.begin(), warnings.end(), [](const auto& line) {
                   return contains(line, "the connection was closed");
               }) == 2);
}

// New connections alone are no progress.
BOOST_AUTO_TEST_CASE(a_server_that_drops_every_connection_is_given_up) {
    json::object config;
    config["url"] = "http://127.0.0.1:1";
    Machine machine(config);
    DeafJupyterServer server(machine.context);
    config["url"] = server.url();
    config["reconnect_timeout"] = 3;  // one connection may take a second on a busy machine
    machine.backend = machine.registry.make<KernelBackend>("gateway", machine.host, config);
    machine.with_kernel([&](Kernel& kernel) -> awaitable<void> {
        co_await begin(kernel, "1");
        server.dropping = true;
        const auto detail = co_await given_up(kernel, errc::kernel_died, 30s);
        BOOST_TEST(contains(detail, "drops them before the kernel answers"), detail);
        // Not as fast as it can, but some ten a second.
        BOOST_TEST(server.connections > 1);
        BOOST_TEST(server.connections < 40);
    });
}

// A server takes 10 MiB, and would break each connection over which the request comes again.
BOOST_AUTO_TEST_CASE(code_that_grows_too_long_on_the_way_is_refused) {
    Machine machine(common("server").kernel_options());
    machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
        try {
            co_await begin(kernel, std::string(6 << 20, '\n'));
            BOOST_ERROR("it was sent");
        } catch (const Error& error) {
            BOOST_TEST((error.code() == errc::bad_argument), error.what());
            BOOST_TEST(contains(error.detail(), "put data into a file"), error.detail());
        }
        co_await one_cell(kernel);
        const auto cell = co_await run_cell(kernel, "#" + std::string(8'000'000, 'x'));
        BOOST_TEST(cell.ok);
    });
}

// Each connection to a channel there is none of is answered, and the answer kept until the kernel's
// end has it: one that never says so is given up.
BOOST_AUTO_TEST_CASE(a_kernel_that_acknowledges_nothing_is_given_up) {
    Machine machine(common("server").kernel_options());
    machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
        co_await begin(kernel, R"py(
import gc, time
from ipybox_kernel import link
own = next(one for one in gc.get_objects() if isinstance(one, link._Link))
own._report = lambda *_: None
for number in range(20_000):
    own._schedule(own._publish, {"op": "data", "stream": 1000 + number, "channel": "none"}, None)
time.sleep(60)
)py");
        try {
            co_await finish(kernel);
            BOOST_ERROR("the cell ended");
        } catch (const Error& error) {
            BOOST_TEST((error.code() == errc::kernel_protocol), error.what());
            BOOST_TEST(contains(error.detail(), "does not acknowledge"), error.detail());
        }
    });
}

// Together they are more than may wait to be written.
BOOST_AUTO_TEST_CASE(many_answers_at_once_go_one_after_the_other) {
    Machine machine(common("server").kernel_options());
    using Local = asio::local::stream_protocol;
    Local::acceptor acceptor(machine.context,
                             Local::endpoint((machine.workspace.path() / "tools").string()));
    const std::string answer(200'000, 'a');
    const auto accept = [&]() -> awaitable<void> {
        std::list<Local::socket> sockets;
        while (sockets.size() < 240) {
            auto [error, socket] = co_await acceptor.async_accept(as_result);
            if (error) co_return;
            sockets.push_back(std::move(socket));
        }
        for (auto& socket : sockets)
            asio::async_write(socket, asio::buffer(answer), asio::detached);
        co_await pause_for(60s);
    };
    asio::co_spawn(machine.context, accept(), asio::detached);
    machine.with_kernel([&](Kernel& kernel) -> awaitable<void> {
        const auto cell = co_await run_cell(kernel, R"py(
import os, socket
sockets = [socket.socket(socket.AF_UNIX) for _ in range(240)]
for one in sockets:
    one.connect(os.environ["TOOLS"]); one.settimeout(30); one.sendall(b"x")
print(sum(len(one.makefile("rb").read(200_000)) for one in sockets))
)py");
        BOOST_TEST(cell.out == "48000000\n");
        if (cell.error) BOOST_TEST(cell.error->traceback == "");
    });
    acceptor.close();
}

BOOST_AUTO_TEST_CASE(sockets_and_files_of_the_host_reach_the_kernel) {
    const JupyterServer& server = common("server");
    auto config = server.kernel_options();
    config["url"] = "http://127.0.0.1:1";
    Machine machine(config);
    Wire wire(machine.context, server.port());
    config["url"] = wire.url();
    machine.backend = machine.registry.make<KernelBackend>("gateway", machine.host, config);
    // Echoes everything on every connection.
    using Local = asio::local::stream_protocol;
    Local::acceptor acceptor(machine.context,
                             Local::endpoint((machine.workspace.path() / "tools").string()));
    const auto echo = [](Local::socket socket) -> awaitable<void> {
        std::string buffer(1 << 16, '\0');
        for (;;) {
            const auto [error, size] =
                co_await socket.async_read_some(asio::buffer(buffer), as_result);
            if (error) co_return;
            const auto piece = asio::buffer(buffer.data(), size);
            co_await asio::async_write(socket, piece, as_result);
        }
    };
    const auto accept = [&]() -> awaitable<void> {
        for (;;) {
            auto [error, socket] = co_await acceptor.async_accept(as_result);
            if (error) co_return;
            asio::co_spawn(machine.context, echo(std::move(socket)), asio::detached);
        }
    };
    asio::co_spawn(machine.context, accept(), asio::detached);
    machine.with_kernel([&](Kernel& kernel) -> awaitable<void> {
        auto cell = co_await run_cell(kernel, R"py(
import os, socket, threading
def talk(data):
    s = socket.socket(socket.AF_UNIX); s.connect(os.environ["TOOLS"]); s.settimeout(30)
    threading.Thread(target=s.sendall, args=(data,)).start()
    back = b""
    while len(back) < len(data):
        back += s.recv(1 << 20)
    s.close()
    return back == data
print(talk(b"hello"), talk(os.urandom(20_000_000)))
results = []
threads = [threading.Thread(target=lambda i=i: results.append(talk(b"%d" % i * 1000))) for i in range(100)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(results), all(results))
print("/ipybox-kernel-" in os.environ["TOOLS"], os.stat(os.path.dirname(os.environ["TOOLS"])).st_mode & 0o777)
)py");
        BOOST_TEST(cell.out == "True True\n100 True\nTrue 448\n");
        if (cell.error) BOOST_TEST(cell.error->traceback == "");
        // While the connection breaks, again and again.
        co_await begin(kernel, "print(all(talk(os.urandom(300_000)) for i in range(40)))");
        for (int i = 0; i < 5; ++i) {
            co_await pause_for(50ms);
            wire.cut(20ms);
        }
        cell = co_await finish(kernel);
        BOOST_TEST(cell.out == "True\n");

        // And while files of the kernel are written and read.
        const auto disturb = [&]() -> awaitable<void> {
            for (int i = 0; i < 5; ++i) {
                wire.cut(20ms);
                co_await pause_for(50ms);
            }
        };
        std::string bytes(20'000'000, '\0');
        for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 % 253);
        asio::co_spawn(machine.context, disturb(), asio::detached);
        co_await as_remote(kernel).write_file("in/whole", bytes, true);
        asio::co_spawn(machine.context, disturb(), asio::detached);
        const auto part = co_await as_remote(kernel).read_file("in/whole", 1, bytes.size());
        BOOST_TEST((part.bytes == std::string_view(bytes).substr(1)));
        BOOST_TEST(part.size == bytes.size());
        // Half a file is none.
        auto writing = as_remote(kernel).write_file("in/half", std::move(bytes), true);
        auto pause = pause_for(5ms);
        const bool whole = co_await ends_first(std::move(writing), std::move(pause));
        BOOST_TEST(!whole);
        cell = co_await run_cell(kernel,
                                 "import time\nwhile len(os.listdir('in')) > 1: "
                                 "time.sleep(0.01)\nprint(os.listdir('in'))");
        BOOST_TEST(cell.out == "['whole']\n");

        // Files come while a cell runs.
        co_await begin(
            kernel,
            "import time\nfor i in range(500):\n    try:\n        import late.arrival; break\n"
            "    except ImportError: time.sleep(0.02)\nprint(late.arrival.text)");
        std::filesystem::create_directories(machine.library.path() / "late");
        write_file(machine.library.path() / "late" / "__init__.py", "");
        write_file(machine.library.path() / "late" / "arrival.py", "text = 'ä'\n");
        co_await as_remote(kernel).refresh();
        cell = co_await finish(kernel);
        BOOST_TEST(cell.out == "ä\n");
        cell = co_await run_cell(kernel,
                                 "import ipybox_kernel; print(ipybox_kernel.__file__.startswith('" +
                                     machine.library.path().string() + "'))");
        BOOST_TEST(cell.out == "False\n");

        // More of them than may wait to be written.
        for (int i = 0; i < 48; ++i)
            write_file(machine.library.path() / "late" / ("more" + std::to_string(i) + ".py"),
                       std::string(1 << 20, '#'));
        co_await as_remote(kernel).refresh();
        cell = co_await run_cell(kernel,
                                 "print(sum(os.path.getsize(os.path.join(late.__path__[0], f'more"
                                 "{i}.py')) for i in range(48)) >> 20)");
        BOOST_TEST(cell.out == "48\n");
    });
    acceptor.close();
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace plugin_kernel_gateway_tests
