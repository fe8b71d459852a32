#include "http_echo.hpp"

#include <sys/socket.h>

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <chrono>
#include <stdexcept>

namespace {
namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
namespace json = boost::json;
using Request = http::request<http::string_body>;
using Response = http::response<http::string_body>;
using asio::ip::tcp;

json::object result_of(const json::object& message) {
    const auto& method = message.at("method").as_string();
    if (method == "initialize")
        return {{"protocolVersion", message.at("params").at("protocolVersion")},
                {"capabilities", {{"tools", json::object()}}},
                {"serverInfo", {{"name", "echo"}, {"version", "1"}}}};
    if (method == "tools/list")
        return {{"tools", json::array{{{"name", "echo"}, {"inputSchema", {{"type", "object"}}}}}}};
    const auto& text = message.at("params").at("arguments").at("text");
    return {{"content", json::array{{{"type", "text"}, {"text", text}}}}};
}

Response answer(const Request& request) {
    Response response(http::status::method_not_allowed, 11);
    if (request.method() == http::verb::post) {
        const auto message = json::parse(request.body()).as_object();
        response.result(http::status::accepted);
        if (const auto* id = message.if_contains("id")) {
            response.result(http::status::ok);
            response.set(http::field::content_type, "application/json");
            response.body() = json::serialize(
                json::object{{"jsonrpc", "2.0"}, {"id", *id}, {"result", result_of(message)}});
        }
    }
    response.prepare_payload();
    return response;
}

void converse(tcp::socket socket) {
    beast::flat_buffer buffer;
    beast::error_code error;
    while (!error) {
        Request request;
        http::read(socket, buffer, request, error);
        if (!error) http::write(socket, answer(request), error);
    }
}
}  // namespace

HttpEcho::HttpEcho() : acceptor_(context_, {asio::ip::address_v4::loopback(), 0}) {
    thread_ = std::thread([this] { serve(); });
}

HttpEcho::~HttpEcho() {
    ::shutdown(acceptor_.native_handle(), SHUT_RDWR);
    thread_.join();
    for (auto& connection : connections_) connection.join();
}

void HttpEcho::serve() {
    for (;;) {
        tcp::socket socket(context_);
        beast::error_code error;
        acceptor_.accept(socket, error);
        if (error) return;
        socket.set_option(tcp::no_delay(true), error);
        connections_.emplace_back(
            [connection = std::move(socket)]() mutable { converse(std::move(connection)); });
    }
}

BarePosts::BarePosts(unsigned short port)
    : host_("127.0.0.1:" + std::to_string(port)), socket_(context_) {
    socket_.connect({asio::ip::address_v4::loopback(), port});
    socket_.set_option(tcp::no_delay(true));
}

double BarePosts::round() {
    Request request(http::verb::post, "/mcp", 11);
    request.set(http::field::host, host_);
    request.set("MCP-Protocol-Version", "2025-11-25");
    request.set(http::field::content_type, "application/json");
    request.set(http::field::accept, "application/json, text/event-stream");
    request.set(http::field::user_agent, "ipybox/0.1.0");
    request.body() = R"({"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo",)"
                     R"("arguments":{"text":"x"},"_meta":{"progressToken":1}}})";
    request.prepare_payload();
    const auto start = std::chrono::steady_clock::now();
    http::write(socket_, request);
    beast::flat_buffer buffer;
    Response response;
    http::read(socket_, buffer, response);
    const auto spent = std::chrono::steady_clock::now() - start;
    if (response.result() != http::status::ok) throw std::runtime_error("the HTTP server refused");
    return std::chrono::duration<double, std::micro>(spent).count();
}
