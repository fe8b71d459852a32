#pragma once
// The address on this machine that a consent page leads back to (RFC 8252).
#include <cstdint>
#include <ipybox/async.hpp>
#include <ipybox/net/http_listener.hpp>
#include <memory>
#include <string>

namespace ipybox::oauth {

// Answers http://127.0.0.1:PORT/callback until a request brings the expected state; whoever does
// not is a stranger. Browsers open connections and say nothing on them.
struct RedirectListener {
    struct Shared final : net::HttpService {
        explicit Shared(const asio::any_io_executor& executor)
            : listener(std::make_shared<net::HttpListener>(executor, "the redirect address",
                                                           net::HttpLimits(), Logger())),
              arrived(executor) {}
        net::HttpReply check(net::HttpPeer& peer, const net::HttpServerRequest& head) override;
        awaitable<bool> answer(net::HttpPeerPtr peer, net::HttpServerRequest request) override;
        net::HttpReply refusal(unsigned, const std::string&) override { return {}; }

        std::shared_ptr<net::HttpListener> listener;
        Event arrived;
        std::string path;
        std::string state;
        std::string target;  // of the request that was waited for
    };

    // port 0: any. Throws Error: io_error (it is taken).
    RedirectListener(asio::any_io_executor executor, std::uint16_t wanted, std::string path,
                     std::string state);
    ~RedirectListener() { shared->listener->close(); }
    RedirectListener(const RedirectListener&) = delete;
    RedirectListener& operator=(const RedirectListener&) = delete;

    // Returns when the redirect has come or at `deadline`.
    static awaitable<void> wait(std::shared_ptr<Shared> shared, Clock::time_point deadline);

    std::shared_ptr<Shared> shared;
    std::uint16_t port = 0;

private:
    static net::HttpReply page(unsigned status, const std::string& text);
};

}  // namespace ipybox::oauth

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/oauth/impl/redirect.ipp>
#endif
