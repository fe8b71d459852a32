#pragma once
// McpClient against a transport in memory: the server's side, and a fixture around both.
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/test/unit_test.hpp>
#include <deque>
#include <functional>
#include <ipybox/mcp/client.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "test_support.hpp"

namespace ipybox::test {

// The server's side of a transport in memory.
struct Wire {
    explicit Wire(asio::any_io_executor executor) : arrived(std::move(executor)) {}

    void say(json::object message) {
        to_client.push_back(std::move(message));
        arrived.notify();
    }
    void say(std::string_view text) { say(json::parse(text).as_object()); }
    void answer(const json::object& request, json::object result) {
        say(mcp::rpc_result(request.at("id"), std::move(result)));
    }
    void refuse(const json::object& request, int code, std::string_view why) {
        say(mcp::rpc_error(request.at("id"), code, why));
    }
    void die(std::string why) {
        death.emplace(errc::mcp_connection, std::move(why));
        arrived.notify();
    }
    std::size_t count(std::string_view method) const {
        std::size_t found = 0;
        for (const auto& message : sent) found += detail::string_of(message, "method") == method;
        return found;
    }
    const json::object& last(std::string_view method) const {
        for (auto at = sent.rbegin(); at != sent.rend(); ++at)
            if (detail::string_of(*at, "method") == method) return *at;
        throw std::runtime_error("never sent: " + std::string(method));
    }

    std::deque<json::object> to_client;
    std::vector<json::object> sent;
    std::vector<json::value> cancelled;
    std::function<void(Wire&, const json::object&)> on_message;
    std::optional<Clock::time_point> person_since;  // a person is being waited for
    std::optional<Error> death;
    bool blocks = false;  // send() never ends
    bool closed = false;
    int opened = 0;
    int transports = 0;
    Event arrived;
};

class MemoryTransport final : public McpTransport, public WaitsForPeople {
public:
    explicit MemoryTransport(std::shared_ptr<Wire> wire) : wire_(std::move(wire)) {
        ++wire_->transports;
    }
    ~MemoryTransport() override { --wire_->transports; }

    awaitable<void> open(Sandbox&) override {
        ++wire_->opened;
        wire_->death.reset();
        co_return;
    }
    awaitable<void> send(json::object message) override {
        while (wire_->blocks) co_await wire_->arrived.wait();
        if (wire_->death) throw *wire_->death;
        wire_->sent.push_back(message);
        if (wire_->on_message) wire_->on_message(*wire_, message);
    }
    awaitable<json::object> receive() override {
        while (wire_->to_client.empty()) {
            if (wire_->closed) throw Error(errc::cancelled, "closed");
            if (wire_->death) throw *wire_->death;
            co_await wire_->arrived.wait();
        }
        auto message = std::move(wire_->to_client.front());
        wire_->to_client.pop_front();
        co_return message;
    }
    void cancel(const json::value& id) override { wire_->cancelled.push_back(id); }
    Duration people_took() const override {
        return wire_->person_since ? Clock::now() - *wire_->person_since : Duration::zero();
    }
    awaitable<void> close() override {
        wire_->closed = true;
        wire_->arrived.notify();
        co_return;
    }

private:
    std::shared_ptr<Wire> wire_;
};

// The transport in memory starts nothing.
class NoSandbox final : public Sandbox {
public:
    awaitable<Capabilities> probe() override { co_return Capabilities(); }
    std::string guest_address(const SandboxPolicy&, const Channel& channel) const override {
        return channel.host_path.string();
    }
    uid_t guest_user(const SandboxPolicy&) const override { return 0; }
    awaitable<std::unique_ptr<SandboxedProcess>> launch(SandboxPolicy, std::vector<std::string>,
                                                        std::vector<Channel>, Stdio) override {
        throw Error(errc::sandbox_refused, "nothing is launched here");
        co_return nullptr;
    }
};

inline json::object object(std::string_view text) { return json::parse(text).as_object(); }

inline void legacy(Wire& wire, const json::object& message) {
    const auto method = detail::string_of(message, "method");
    if (method == "server/discover") wire.refuse(message, -32601, "Method not found");
    if (method == "initialize")
        wire.answer(message, object(R"({"protocolVersion":"2025-06-18","capabilities":{"tools":{}},
            "serverInfo":{"name":"old"},"instructions":"read me"})"));
    if (method == "tools/list") wire.answer(message, object(R"({"tools":[{"name":"one"}]})"));
}

inline void modern(Wire& wire, const json::object& message) {
    const auto method = detail::string_of(message, "method");
    if (method == "server/discover")
        wire.answer(message, object(R"({"resultType":"complete","supportedVersions":["2026-07-28"],
            "capabilities":{"tools":{}},"instructions":"read me too",
            "_meta":{"io.modelcontextprotocol/serverInfo":{"name":"new"}}})"));
    if (method == "initialize") wire.refuse(message, -32601, "Method not found");
    if (method == "tools/list") wire.answer(message, object(R"({"tools":[{"name":"two"}]})"));
}

struct ClientFixture {
    ClientFixture() { options.name = "srv"; }

    McpClient& client() {
        if (!client_)
            client_ = std::make_unique<McpClient>(context.get_executor(),
                                                  std::make_unique<MemoryTransport>(peer),
                                                  std::move(options));
        return *client_;
    }
    void connect() { run(context, client().connect(sandbox)); }
    CallResult call(std::string name, CallOptions limits = CallOptions()) {
        return run(context, client().call_tool(std::move(name), json::object(), std::move(limits)));
    }
    // What an operation throws.
    template <class Work>
    static Error failure(Work work) {
        try {
            work();
        } catch (const Error& error) {
            return error;
        }
        throw std::runtime_error("nothing was thrown");
    }
    // Starts a call that runs beside the test; its outcome appears in `results`.
    void start_call(std::string name) {
        asio::co_spawn(context, client().call_tool(std::move(name), json::object(), CallOptions()),
                       [this](std::exception_ptr failure, CallResult result) {
                           results.emplace_back(failure, std::move(result));
                       });
    }
    void settle() {
        context.restart();
        context.poll();
    }
    // Runs everything until the condition holds.
    template <class Condition>
    void until(Condition holds) {
        context.restart();
        const auto limit = Clock::now() + std::chrono::minutes(1);
        while (!holds())
            if (context.run_one_until(limit) == 0) throw std::runtime_error("it never came");
    }

    asio::io_context context;
    NoSandbox sandbox;
    McpClientOptions options;
    std::shared_ptr<Wire> peer = std::make_shared<Wire>(context.get_executor());
    std::vector<std::pair<std::exception_ptr, CallResult>> results;
    std::unique_ptr<McpClient> client_;
};

inline errc code_of(std::exception_ptr failure) {
    try {
        if (failure) std::rethrow_exception(failure);
    } catch (const Error& error) {
        return static_cast<errc>(error.code().value());
    }
    throw std::runtime_error("nothing was thrown");
}

inline void text_result(Wire& wire, const json::object& message, std::string_view text) {
    json::object block;
    block["type"] = "text";
    block["text"] = text;
    json::object result;
    result["content"] = json::array({block});
    wire.answer(message, std::move(result));
}

inline bool contains(const std::string& text, std::string_view part) {
    return text.find(part) != text.npos;
}

}  // namespace ipybox::test
