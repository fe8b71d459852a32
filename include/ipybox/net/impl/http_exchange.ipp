#pragma once
#include <ipybox/net/http_client.hpp>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <ipybox/compilation.hpp>
#include <ipybox/net/impl/http_client_state.hpp>

namespace ipybox {

IPYBOX_DECL awaitable<std::unique_ptr<HttpResponse>> HttpClient::send(HttpRequest request) {
    return send(state_, std::make_shared<const HttpRequest>(std::move(request)));
}

IPYBOX_DECL awaitable<std::unique_ptr<HttpResponse>> HttpClient::send(
    std::shared_ptr<const HttpRequest> request) {
    return send(state_, std::move(request));
}

// ---- requests ----
IPYBOX_DECL void HttpClient::check(const HttpRequest& request) {
    if (!net::is_http_token(request.method))
        throw Error(errc::bad_argument, "an HTTP method that is none");
    for (const auto& [name, value] : request.headers) {
        if (!net::is_http_token(name))
            throw Error(errc::bad_argument, "an HTTP header has a name that is none");
        for (const std::string_view own :
             {"Host", "Content-Length", "Transfer-Encoding", "Connection", "Expect", "Upgrade"})
            if (same_header(name, own))
                throw Error(errc::bad_argument,
                            "the HTTP header " + name + " cannot be set: ipybox does that");
        // Not the value: it may be a secret.
        for (const char c : value)
            if ((static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7F)
                throw Error(errc::bad_argument, "the value of the HTTP header " + name +
                                                    " has a line end or another control character");
    }
}

IPYBOX_DECL std::string HttpClient::head_of(const Impl& state, const net::HttpTarget& target,
                                            const HttpRequest& request, bool through_proxy) {
    const HttpUrl& url = target.url;
    std::string head;
    head.reserve(512);
    const auto add = [&head](std::string_view name, std::string_view value) {
        head.append(name).append(": ").append(value).append("\r\n");
    };
    head.append(request.method).append(" ");
    if (through_proxy) head += target.origin;
    head.append(url.path).append(url.query).append(" HTTP/1.1\r\n");
    add("Host", target.authority);
    for (auto entry = request.headers.begin(); entry != request.headers.end(); ++entry) {
        const bool again = std::any_of(entry + 1, request.headers.end(), [&](const auto& later) {
            return same_header(later.first, entry->first);
        });
        if (!again) add(entry->first, entry->second);
    }
    if (find_header(request.headers, "User-Agent").empty())
        head.append("User-Agent: ipybox/").append(detail::build_version).append("\r\n");
    if (!url.credentials.empty() && find_header(request.headers, "Authorization").empty())
        add("Authorization", "Basic " + detail::encode_base64(url.credentials));
    if (through_proxy)
        if (const auto proxy = proxy_for(state, url); proxy && !proxy->credentials.empty())
            add("Proxy-Authorization", "Basic " + detail::encode_base64(proxy->credentials));
    if (!request.body.empty() ||
        (request.method != "GET" && request.method != "HEAD" && request.method != "DELETE"))
        add("Content-Length", std::to_string(request.body.size()));
    return head.append("\r\n");
}

IPYBOX_DECL awaitable<std::unique_ptr<HttpResponse>> HttpClient::send(ImplPtr state,
                                                                      RequestPtr request) {
    check(*request);
    TargetPtr target = state->target(request->url);
    const int max_redirects = state->options.max_redirects;
    for (int followed = 0;; ++followed) {
        auto answered = co_await exchange(state, target, request);
        const unsigned status = answered->parser->code;
        const bool redirect =
            status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
        if (!redirect || max_redirects == 0)
            co_return std::unique_ptr<HttpResponse>(new HttpResponse(std::move(answered)));
        const std::string location(find_header(answered->parser->headers, "Location"));
        if (location.empty())
            co_return std::unique_ptr<HttpResponse>(new HttpResponse(std::move(answered)));
        const HttpUrl& url = target->url;
        if (followed >= max_redirects)
            throw Error(errc::http_failed, url.printable() + " redirects more than " +
                                               std::to_string(max_redirects) + " times");
        HttpUrl next = url.resolve(location);
        if (next.origin() != url.origin())
            throw Error(errc::http_failed,
                        url.printable() + " redirects to " + next.printable() +
                            ": another origin is not followed, it would get what is meant for "
                            "the first; if it is the right one, configure that URL");
        if (next.credentials.empty()) next.credentials = url.credentials;
        // Only 303 asks for another method; the others may keep it (RFC 9110, 15.4).
        if (status == 303 && request->method != "HEAD") {
            auto changed = std::make_shared<HttpRequest>(*request);
            changed->method = "GET";
            changed->body.clear();
            std::erase_if(changed->headers, [](const auto& header) {
                return same_header(header.first, "Content-Type");
            });
            request = std::move(changed);
        }
        target = std::make_shared<net::HttpTarget>(std::move(next));
    }
}

IPYBOX_DECL awaitable<HttpClient::ExchangePtr> HttpClient::exchange(ImplPtr state, TargetPtr target,
                                                                    RequestPtr request) {
    const bool proxied = !target->loopback && proxy_for(*state, target->url).has_value();
    const std::string proxied_key = proxied ? "proxied " + target->origin : std::string();
    const std::string& key = proxied ? proxied_key : target->origin;
    std::string head = head_of(*state, *target, *request, proxied && !target->url.tls);
    const bool repeatable = request->repeatable || request->method == "GET" ||
                            request->method == "HEAD" || request->method == "OPTIONS" ||
                            request->method == "PUT" || request->method == "DELETE";
    auto result = std::make_shared<Exchange>(state, target);
    if (auto kept = state->take(key)) {
        result->hold(std::move(kept));
        const bool answered = co_await attempt(state, result, std::move(head), request, repeatable);
        if (answered) co_return result;
        head = head_of(*state, *target, *request, proxied && !target->url.tls);
        // The others of its age are likely to be gone too.
        state->forget(key);
    }
    ConnectionPtr connection;
    co_await dial(state, target->url, false, connection, request->deadline);
    if (state->stopped) throw boost::system::system_error(asio::error::operation_aborted);
    connection->key = key;
    result->hold(std::move(connection));
    co_await attempt(state, result, std::move(head), request, false);
    co_return result;
}

// Writes the request and reads the head of its response. False: the connection was closed before
// it brought anything, and `may_fail` allows to try another.
IPYBOX_DECL awaitable<bool> HttpClient::attempt(ImplPtr state, ExchangePtr exchange,
                                                std::string head, RequestPtr request,
                                                bool may_fail) {
    const ConnectionPtr connection = exchange->connection;
    connection->limit(request->deadline);
    boost::system::error_code unsent;
    bool direct = !connection->stream.is_tls();
    std::size_t sent = 0;
    if (direct) {
        // Nearly always the socket has room for all of it: no wait.
        auto& socket = connection->stream.socket();
        if (!socket.non_blocking()) socket.non_blocking(true, unsent);
        const std::array<asio::const_buffer, 2> whole{asio::buffer(head),
                                                      asio::buffer(request->body)};
        if (!unsent) sent = socket.write_some(whole, unsent);
        if (unsent == asio::error::would_block) unsent.clear();
    }
    if (!unsent && sent < head.size() + request->body.size()) {
        const std::array<asio::const_buffer, 2> rest{
            asio::buffer(head) + sent,
            asio::buffer(request->body) + (sent - std::min(sent, head.size()))};
        const auto [error, size] = co_await asio::async_write(connection->stream, rest, as_result);
        unsent = error;
    }
    // A server may refuse a body before it has all of it: its answer counts then.
    if (unsent == asio::error::operation_aborted)
        fail(connection.get(), exchange->url(), unsent, "did not take the request");
    const bool without_body = request->method == "HEAD";
    constexpr int max_interim = 20;
    for (int interim = 0;; ++interim) {
        exchange->parser.emplace(state->options.max_header, without_body);
        if (connection->input.size() > 0) feed(*state, *exchange);
        while (!exchange->parser->is_header_done()) {
            const bool silent =
                interim == 0 && !exchange->parser->got_some() && connection->input.size() == 0;
            boost::system::error_code error = asio::error::would_block;
            // The answer of a server nearby may be there already.
            if (direct) error = fill_now(*connection);
            direct = false;
            if (error == asio::error::would_block) error = co_await fill(connection);
            if (error) {
                const bool aborted = error == asio::error::operation_aborted;
                if (may_fail && silent && !aborted) co_return false;
                fail(connection.get(), exchange->url(), unsent && !aborted ? unsent : error,
                     "did not answer");
            }
            feed(*state, *exchange);
        }
        const unsigned code = exchange->parser->code;
        if (code / 100 != 1 || code == 101) break;
        if (interim == max_interim)
            throw Error(errc::http_failed,
                        exchange->url().printable() + " sends interim answers without end");
    }
    connection->limit(never);
    if (exchange->parser->is_done()) exchange->release(!unsent && exchange->parser->keep_alive());
    co_return true;
}

// Reads what comes next into the connection's buffer.
IPYBOX_DECL awaitable<boost::system::error_code> HttpClient::fill(ConnectionPtr connection) {
    auto& input = connection->input;
    const auto room = input.prepare(chunk);
    const auto [error, size] = co_await connection->stream.async_read_some(room, as_result);
    input.commit(size);
    co_return error;
}

// The same without waiting; would_block when there is nothing. Not for TLS.
IPYBOX_DECL boost::system::error_code HttpClient::fill_now(Connection& connection) {
    boost::system::error_code error;
    const auto room = connection.input.prepare(chunk);
    connection.input.commit(connection.stream.socket().read_some(room, error));
    return error;
}

// Gives the parser what has come.
IPYBOX_DECL void HttpClient::feed(const Impl& state, Exchange& exchange) {
    namespace http = boost::beast::http;
    auto& input = exchange.connection->input;
    boost::system::error_code error;
    exchange.parser->take(input, error);
    if (error == http::error::header_limit ||
        input.size() > state.options.max_header + (std::size_t{64} << 10))
        throw Error(errc::http_failed, exchange.url().printable() + " sends a head of more than " +
                                           std::to_string(state.options.max_header) + " bytes");
    if (error)
        throw Error(errc::http_failed, exchange.url().printable() +
                                           " sends what is no HTTP response: " + error.message() +
                                           "; is the URL right?");
}

IPYBOX_DECL awaitable<std::string> HttpClient::read_some(ExchangePtr exchange,
                                                         Clock::time_point deadline) {
    auto& parser = *exchange->parser;
    if (exchange->connection) exchange->connection->limit(deadline);
    while (parser.body.empty() && exchange->connection) {
        const ConnectionPtr connection = exchange->connection;
        if (parser.is_done()) {
            exchange->release(parser.keep_alive());
            break;
        }
        auto error = co_await fill(connection);
        if (error == asio::error::eof && parser.need_eof()) {
            parser.put_eof(error);
            exchange->release(false);
            break;
        }
        if (error) {
            exchange->release(false);
            fail(connection.get(), exchange->url(), error, "did not complete its answer");
        }
        feed(*exchange->state, *exchange);
    }
    std::string piece = std::move(parser.body);
    parser.body.clear();
    // Ended in one piece: free the connection now, for the next request.
    if (exchange->connection && parser.is_done()) exchange->release(parser.keep_alive());
    co_return piece;
}

IPYBOX_DECL awaitable<std::string> HttpClient::read_all(ExchangePtr exchange, std::size_t limit,
                                                        Clock::time_point deadline) {
    std::string all;
    MemoryReservation memory;
    for (;;) {
        const std::string piece = co_await read_some(exchange, deadline);
        if (piece.empty()) co_return all;
        if (piece.size() > limit - all.size()) {
            exchange->release(false);
            throw Error(errc::http_failed, exchange->url().printable() +
                                               " answered with more than " + std::to_string(limit) +
                                               " bytes");
        }
        all += piece;
        if (!memory.resize(all.size() > free_of_budget ? all.capacity() : 0)) {
            exchange->release(false);
            throw Error(errc::http_failed, exchange->url().printable() +
                                               " answered with more than there is memory left for; "
                                               "try again, or ask for less");
        }
    }
}

IPYBOX_DECL HttpResponse::~HttpResponse() {
    if (exchange_) exchange_->release(false);
}

IPYBOX_DECL unsigned HttpResponse::status() const noexcept { return exchange_->parser->code; }

IPYBOX_DECL const HttpHeaders& HttpResponse::headers() const noexcept {
    return exchange_->parser->headers;
}

IPYBOX_DECL const HttpUrl& HttpResponse::url() const noexcept { return exchange_->url(); }

IPYBOX_DECL awaitable<std::string> HttpResponse::read_some(Clock::time_point deadline) {
    return HttpClient::read_some(exchange_, deadline);
}

IPYBOX_DECL std::optional<std::string> HttpResponse::all_now(std::size_t limit) {
    auto& body = exchange_->parser->body;
    if (exchange_->connection || body.size() > limit) return std::nullopt;
    return std::exchange(body, std::string());
}

IPYBOX_DECL awaitable<std::string> HttpResponse::read_all(std::size_t limit,
                                                          Clock::time_point deadline) {
    return HttpClient::read_all(exchange_, limit, deadline);
}

}  // namespace ipybox
