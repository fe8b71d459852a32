#pragma once
// Calls the tools of a ToolServer from a program of this machine: what code in a kernel does
// through generated modules, in C++.
#include <boost/json/parse_options.hpp>
#include <ipybox/async.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_memory.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/error.hpp>
#include <ipybox/net/http_client.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace ipybox {

namespace json = boost::json;

// Where the tool server is, and what it demands.
struct ToolRunnerOptions {
    // How the MCP server is started or reached. Given, it is registered before the first call, for
    // which `token` must be the tool server's control token; absent, somebody else registers it.
    std::optional<json::object> server_params;
    std::string host = "localhost";
    unsigned short port = 8900;
    std::string unix_socket;  // instead of host and port
    std::string token;        // the tool server's token() or control_token()
    Duration timeout{};       // for one call, approval included; zero: unlimited
    std::size_t max_answer = std::size_t{256} << 20;  // bytes
};

// What a tool returned.
struct ToolOutput {
    json::value result;   // text, or the structured result; null when there are only other blocks
    json::array content;  // all blocks, when one of them is no text
};

// Calls the tools of one MCP server. Any number of calls at once, on one thread.
//
// Example: tool_calls/main.cpp [ToolRunner]
class ToolRunner {
public:
    // Connects to nothing yet. server_name: as it is, or is to be, registered.
    ToolRunner(asio::any_io_executor executor, std::string server_name,
               ToolRunnerOptions options = {})
        : state_(std::make_shared<Impl>(std::move(executor), std::move(server_name),
                                        std::move(options))) {}

    // Calls a tool and waits for approval and result. Throws Error: mcp_error (with the tool's or
    // the server's message), denied (the call was rejected or the token refused), timed_out (nobody
    // approved it in time or `timeout` passed), cancelled (the server withdrew it), bad_config
    // (server_params of a wrong form), io_error (the tool server cannot be reached).
    awaitable<ToolOutput> run(std::string tool_name, json::object tool_args) {
        return run(state_, std::move(tool_name), std::move(tool_args));
    }

    // Stops all MCP servers of the tool server, which start again on their next use, and withdraws
    // pending calls. Needs the control token. Throws what run() throws.
    awaitable<void> reset() { return reset(state_); }

private:
    struct Impl {
        Impl(asio::any_io_executor executor, std::string name, ToolRunnerOptions o)
            : server(std::move(name)),
              options(std::move(o)),
              http(std::move(executor), of_client(options)) {}
        static HttpClientOptions of_client(const ToolRunnerOptions& options) {
            HttpClientOptions settings;
            settings.unix_socket = options.unix_socket;
            settings.proxies_from_environment = false;  // the token is for this machine
            settings.max_redirects = 0;
            return settings;
        }
        std::string url(std::string_view path) const {
            const bool v6 = options.host.find(':') != std::string::npos;
            return "http://" + (v6 ? "[" + options.host + "]" : options.host) + ":" +
                   std::to_string(options.port) + std::string(path);
        }
        std::string server;
        ToolRunnerOptions options;
        HttpClient http;
        bool registered = false;
    };
    using ImplPtr = std::shared_ptr<Impl>;

    static awaitable<ToolOutput> run(ImplPtr state, std::string tool, json::object arguments) {
        if (state->options.server_params && !state->registered) {
            json::object registration;
            registration["server_name"] = state->server;
            registration["server_params"] = *state->options.server_params;
            co_await exchange(state, "PUT", "/servers", detail::write_json(registration));
            state->registered = true;
        }
        json::object call;
        call["server_name"] = state->server;
        call["tool_name"] = std::move(tool);
        call["tool_args"] = std::move(arguments);
        json::object answer = co_await exchange(state, "POST", "/run", detail::write_json(call));
        ToolOutput output;
        if (auto* result = answer.if_contains("result")) output.result = std::move(*result);
        if (auto* content = answer.if_contains("content"); content && content->is_array())
            output.content = std::move(content->get_array());
        co_return output;
    }

    static awaitable<void> reset(ImplPtr state) {
        co_await exchange(state, "PUT", "/reset", std::string());
    }

    static awaitable<json::object> exchange(ImplPtr state, std::string method, std::string path,
                                            std::string body) {
        HttpRequest request;
        request.method = std::move(method);
        request.url = state->url(path);
        request.headers.emplace_back("Authorization", "Bearer " + state->options.token);
        request.headers.emplace_back("Content-Type", "application/json");
        request.body = std::move(body);
        request.deadline = deadline_after(state->options.timeout);
        const auto deadline = request.deadline;
        std::string text;
        unsigned status = 0;
        std::optional<Error> unreachable;
        try {
            const auto response = co_await state->http.send(std::move(request));
            status = response->status();
            text = co_await response->read_all(state->options.max_answer, deadline);
        } catch (const Error& error) {
            if (error.code() != errc::http_failed) throw;
            unreachable.emplace(errc::io_error, "the tool server: " + error.detail());
        }
        if (unreachable) throw *unreachable;
        co_return checked(status, text);
    }

    static json::object checked(unsigned status, const std::string& text) {
        boost::system::error_code wrong;
        json::parse_options limits;
        limits.max_depth = 128;
        auto answer = detail::parse_exact(text, wrong, limits);
        detail::round_numbers(answer);
        if (wrong || !answer.is_object())
            throw Error(errc::io_error, "the tool server answered with HTTP status " +
                                            std::to_string(status) + " and no JSON object");
        auto& object = answer.get_object();
        const auto* problem = object.if_contains("error");
        if (status == 200 && !problem) return std::move(object);
        const auto* said = detail::find_string(object, "error");
        const std::string why =
            said ? std::string(*said)
                 : "the tool server answered with HTTP status " + std::to_string(status);
        const auto kind = detail::string_of(object, "type");
        errc code = errc::mcp_error;
        if (status == 401 || status == 403 || kind == "rejected" || kind == "inactive")
            code = errc::denied;
        if (kind == "timeout") code = errc::timed_out;
        if (kind == "withdrawn") code = errc::cancelled;
        if (kind == "bad_config") code = errc::bad_config;
        throw Error(code, why);
    }

    ImplPtr state_;
};

}  // namespace ipybox
