#pragma once
// The address on this machine that a consent page leads back to (RFC 8252).
#include <cstdint>
#include <ipybox/async.hpp>
#include <ipybox/net/http_listener.hpp>
#include <ipybox/oauth/protocol.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox::detail {

// Answers http://127.0.0.1:PORT/callback until a request brings the expected state; whoever does not is
// a stranger. Browsers open connections and say nothing on them.
struct RedirectListener {
    struct Shared final : HttpService {
        explicit Shared(const asio::any_io_executor& executor)
            : listener(std::make_shared<HttpListener>(executor, "the redirect address", HttpLimits(), Logger())),
              arrived(executor) {}
        HttpReply check(HttpPeer& peer, const HttpServerRequest& head) override;
        awaitable<bool> answer(HttpPeerPtr peer, HttpServerRequest request) override;
        HttpReply refusal(unsigned, const std::string&) override { return {}; }

        std::shared_ptr<HttpListener> listener;
        Event arrived;
        std::string path;
        std::string state;
        std::string target;  // of the request that was waited for
    };

    // port 0: any. Throws errc::io_error when it is taken.
    RedirectListener(asio::any_io_executor executor, std::uint16_t wanted, std::string path, std::string state)
        : shared(std::make_shared<Shared>(executor)) {
        shared->path = std::move(path);
        shared->state = std::move(state);
        asio::ip::tcp::acceptor acceptor(executor);
        listen_on_loopback(acceptor, "127.0.0.1", wanted, "the login's redirect address");
        port = acceptor.local_endpoint().port();
        shared->listener->start(shared, std::move(acceptor));
    }
    ~RedirectListener() { shared->listener->close(); }
    RedirectListener(const RedirectListener&) = delete;
    RedirectListener& operator=(const RedirectListener&) = delete;

    // Returns when the redirect has come or at `deadline`.
    static awaitable<void> wait(std::shared_ptr<Shared> shared, Clock::time_point deadline) {
        while (shared->target.empty() && Clock::now() < deadline)
            co_await shared->arrived.wait(deadline);
    }

    std::shared_ptr<Shared> shared;
    std::uint16_t port = 0;

private:
    static HttpReply page(unsigned status, const std::string& text);
};

inline HttpReply RedirectListener::page(unsigned status, const std::string& text) {
    HttpReply reply;
    reply.status = status;
    reply.content_type = "text/html; charset=utf-8";
    reply.body = "<!doctype html><meta charset=utf-8><title>ipybox</title><p>" + text + "</p>\n";
    reply.headers =
        "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n"
        "Content-Security-Policy: default-src 'none'\r\n";
    return reply;
}

inline HttpReply RedirectListener::Shared::check(HttpPeer& peer, const HttpServerRequest& head) {
    peer.keep_alive = false;
    const std::string_view wanted = head.target();
    const bool ours = head.method() == boost::beast::http::verb::get && target.empty() && wanted.substr(0, wanted.find('?')) == path;
    if (!ours) return page(404, "There is nothing here.");
    // Whoever else on this machine found the port cannot end the login.
    const auto query = parse_query(query_of(wanted));
    const auto found = query ? query->find("state") : decltype(query->end())();
    const bool expected = query && found != query->end() && same_secret(found->second, state);
    if (!expected) return page(400, "This belongs to another login. Start again.");
    return {};
}

inline awaitable<bool> RedirectListener::Shared::answer(HttpPeerPtr peer, HttpServerRequest request) {
    target = std::string(request.target());
    auto text = render(*peer, page(200, "ipybox has the answer. You may close this window."));
    co_await peer->write(std::move(text));
    arrived.notify();
    co_return false;
}

}  // namespace ipybox::detail
