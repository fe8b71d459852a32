#pragma once
#include <ipybox/oauth/redirect.hpp>

#include <ipybox/compilation.hpp>
#include <ipybox/oauth/protocol.hpp>
#include <string_view>
#include <utility>

namespace ipybox::oauth {

IPYBOX_DECL RedirectListener::RedirectListener(asio::any_io_executor executor, std::uint16_t wanted,
                                               std::string path, std::string state)
    : shared(std::make_shared<Shared>(executor)) {
    shared->path = std::move(path);
    shared->state = std::move(state);
    asio::ip::tcp::acceptor acceptor(executor);
    net::listen_on_loopback(acceptor, "127.0.0.1", wanted, "the login's redirect address");
    port = acceptor.local_endpoint().port();
    shared->listener->start(shared, std::move(acceptor));
}

IPYBOX_DECL awaitable<void> RedirectListener::wait(std::shared_ptr<Shared> shared,
                                                   Clock::time_point deadline) {
    while (shared->target.empty() && Clock::now() < deadline)
        co_await shared->arrived.wait(deadline);
}

IPYBOX_DECL net::HttpReply RedirectListener::page(unsigned status, const std::string& text) {
    net::HttpReply reply;
    reply.status = status;
    reply.content_type = "text/html; charset=utf-8";
    reply.body = "<!doctype html><meta charset=utf-8><title>ipybox</title><p>" + text + "</p>\n";
    reply.headers =
        "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n"
        "Content-Security-Policy: default-src 'none'\r\n";
    return reply;
}

IPYBOX_DECL net::HttpReply oauth::RedirectListener::Shared::check(
    net::HttpPeer& peer, const net::HttpServerRequest& head) {
    peer.keep_alive = false;
    const std::string_view wanted = head.target();
    const bool ours = head.method() == boost::beast::http::verb::get && target.empty() &&
                      wanted.substr(0, wanted.find('?')) == path;
    if (!ours) return page(404, "There is nothing here.");
    // Whoever else on this machine found the port cannot end the login.
    const auto query = parse_query(query_of(wanted));
    const auto found = query ? query->find("state") : decltype(query->end())();
    const bool expected = query && found != query->end() && same_secret(found->second, state);
    if (!expected) return page(400, "This belongs to another login. Start again.");
    return {};
}

IPYBOX_DECL awaitable<bool> oauth::RedirectListener::Shared::answer(
    net::HttpPeerPtr peer, net::HttpServerRequest request) {
    target = std::string(request.target());
    auto text = render(*peer, page(200, "ipybox has the answer. You may close this window."));
    co_await peer->write(std::move(text));
    arrived.notify();
    co_return false;
}

}  // namespace ipybox::oauth
