#pragma once
// What the parts of a ToolServer share.
#include <ipybox/net/http_listener.hpp>
#include <ipybox/tools/tool_server.hpp>
#include <set>

namespace ipybox {

struct ToolServer::Impl final : net::HttpService, std::enable_shared_from_this<Impl> {
    Impl(PluginRegistry& r, Host& h, Sandbox& s, ApprovalPolicy& p, ToolServerOptions o);
    net::HttpReply check(net::HttpPeer& peer, const net::HttpServerRequest& head) override;
    awaitable<bool> answer(net::HttpPeerPtr peer, net::HttpServerRequest request) override;
    net::HttpReply refusal(unsigned status, const std::string& why) override;
    void define(Variables given) {
        variables = VariableSource(std::move(given), {{"WORKSPACE", options.workspace.string()}});
    }
    void withdraw();
    void close();

    // For the arguments of one session's calls and their answers.
    MemoryBudget memory{std::size_t{100} << 20, &MemoryBudget::process()};
    PluginRegistry& registry;
    Host& host;
    Sandbox& sandbox;
    std::shared_ptr<ApprovalPolicy> policy;
    ToolServerOptions options;
    std::shared_ptr<net::HttpListener> listener;
    Event withdrawn;
    std::map<std::string, ServerPtr, std::less<>> servers;
    // Refers to their tools: dropped before these change.
    std::unique_ptr<tools::ToolCatalogue> catalogue;
    Clock::time_point files_trusted_until{};  // those of the workspace that it was made of
    VariableSource variables;
    Secrets secrets;
    std::set<std::string, std::less<>> unregistered;  // names that had a server
    std::string execution;                            // its id, while calls are accepted
    unsigned long turn = 0;  // grows when calls are withdrawn; a call belongs to its own
    int programs = 0;        // that are asked about now
    bool active = false;
    bool closed = false;
};

}  // namespace ipybox
