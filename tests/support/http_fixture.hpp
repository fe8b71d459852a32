#pragma once
// What the tests of both transports over HTTP need: real servers, and one that follows a script.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <functional>
#include <ipybox/mcp/client.hpp>
#include <ipybox/registry.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "free_port.hpp"
#include "http_server.hpp"
#include "test_support.hpp"

namespace ipybox::test {

inline bool contains(std::string_view text, std::string_view part) {
    return text.find(part) != text.npos;
}

inline std::string text_of(const CallResult& result) {
    return std::string(result.content.at(0).at("text").as_string());
}

struct HttpFixture {
    explicit HttpFixture(std::string name) : plugin(std::move(name)) {
        host.executor = context.get_executor();
        host.logger.level = LogLevel::debug;
        host.logger.write = [this](LogLevel, std::string_view line) { log.emplace_back(line); };
        registry.load(plugin_directory() / "sandbox" / "none.so");
        registry.load(plugin_directory() / "transport" / (plugin + ".so"));
        sandbox = registry.make<Sandbox>("none", host, {});
    }
    ~HttpFixture() {
        if (client) run(context, client->close());
        client.reset();
        context.restart();
        context.poll();
    }

    // Starts a program and waits until it listens on `port`.
    std::unique_ptr<ChildProcess> start(std::vector<std::string> argv, std::uint16_t port) {
        const char* path = ::getenv("PATH");
        argv.front() = find_program(argv.front(), path).value().string();
        SpawnRequest request;
        request.argv = std::move(argv);
        request.env = {{"PORT", std::to_string(port)}, {"PATH", path}};
        auto child = std::make_unique<ChildProcess>(context.get_executor(), std::move(request));
        auto& process = *child;
        const auto listens = [&]() -> awaitable<void> {
            for (bool open = false; !open;) {
                if (process.exit_status())
                    throw std::runtime_error("it ended: " + process.output_tail());
                asio::ip::tcp::socket probe(context);
                const asio::ip::tcp::endpoint where(asio::ip::address_v4::loopback(), port);
                const auto [error] = co_await probe.async_connect(where, as_result);
                open = !error;
                if (!open) co_await sleep_until(Clock::now() + std::chrono::milliseconds(20));
            }
        };
        run(context, listens());
        return child;
    }
    std::unique_ptr<ChildProcess> everything(std::string mode, std::uint16_t port) {
        const auto file = node_servers() / "@modelcontextprotocol/server-everything/dist/index.js";
        return start({"node", file.string(), std::move(mode)}, port);
    }
    std::unique_ptr<ChildProcess> fastmcp(std::string mode, std::uint16_t port) {
        const std::filesystem::path support = required_environment("IPYBOX_TEST_SUPPORT");
        return start({kernel_python().string(), (support / "fastmcp_server.py").string(),
                      std::move(mode), std::to_string(port)},
                     port);
    }

    std::unique_ptr<McpTransport> transport(const std::string& url, json::object headers = {}) {
        json::object config{{"url", url}, {"name", "srv"}};
        if (!headers.empty()) config["headers"] = std::move(headers);
        return registry.make<McpTransport>(plugin, host, config);
    }
    void connect(const std::string& url, McpClientOptions options = McpClientOptions(),
                 json::object headers = {}) {
        if (client) run(context, client->close());
        options.name = "srv";
        client = std::make_unique<McpClient>(host.executor, transport(url, std::move(headers)),
                                             std::move(options));
        run(context, client->connect(*sandbox));
    }
    CallResult call(std::string tool, std::string_view arguments,
                    CallOptions limits = CallOptions()) {
        auto object = json::parse(arguments).as_object();
        return run(context,
                   client->call_tool(std::move(tool), std::move(object), std::move(limits)));
    }
    template <class Work>
    static Error failure(Work work) {
        try {
            work();
        } catch (const Error& error) {
            return error;
        }
        throw std::runtime_error("nothing was thrown");
    }
    Error call_failure(std::string tool, CallOptions limits = CallOptions()) {
        return failure([&] { call(std::move(tool), "{}", std::move(limits)); });
    }
    // Calls a tool so often at once; each must get its own answer to {"message": "N"}.
    int echoes(const std::string& tool, int count) {
        int right = 0, ended = 0;
        const auto one = [&](int i) -> awaitable<void> {
            const std::string number = "no. " + std::to_string(i) + ";";
            json::object arguments;
            arguments["message"] = number;
            CallOptions limits;
            try {
                const auto result =
                    co_await client->call_tool(tool, std::move(arguments), std::move(limits));
                right += contains(text_of(result), number);
            } catch (const Error& error) {
                log.emplace_back(error.detail());
            }
            ++ended;
        };
        for (int i = 0; i < count; ++i) asio::co_spawn(context, one(i), asio::detached);
        until([&] { return ended == count; });
        return right;
    }
    // Runs the io_context until it is so; fails after two minutes.
    void until(std::function<bool()> so) {
        const auto wait = [&]() -> awaitable<void> {
            while (!so()) co_await sleep_until(Clock::now() + std::chrono::milliseconds(1));
        };
        run(context, wait());
    }
    bool logged(std::string_view part) const {
        for (const auto& line : log)
            if (contains(line, part)) return true;
        return false;
    }

    std::string plugin;
    TemporaryDirectory directory;
    asio::io_context context;
    Host host;
    std::vector<std::string> log;
    PluginRegistry registry;
    std::unique_ptr<Sandbox> sandbox;
    std::unique_ptr<McpClient> client;
};

}  // namespace ipybox::test
