#include "server.hpp"

#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_memory.hpp>
#include <ipybox/detail/terminal_text.hpp>

namespace ipybox::gateway {
namespace {

// Bytes of an answer, and what its JSON may take in memory: it describes one kernel.
constexpr std::size_t longest_answer = std::size_t{8} << 20;
constexpr std::size_t most_decoded_answer = std::size_t{16} << 20;
constexpr std::size_t answer_depth = 32;
// Cookies of a server that are kept.
constexpr std::size_t most_cookies = 20;

}  // namespace

std::string shown(std::string_view text) {
    return detail::printable(std::string(text.substr(0, 300)));
}

std::string Answer::reason() const {
    const auto* object = body.if_object();
    if (object == nullptr) return {};
    for (const char* key : {"message", "reason"})
        if (const auto text = detail::string_of(*object, key); !text.empty())
            return ": " + shown(text);
    return {};
}

awaitable<Answer> Server::call(std::shared_ptr<Server> self, std::string method, std::string path,
                               std::string body, Clock::time_point deadline) {
    Answer answer = co_await once(self, method, path, body, deadline);
    // Without a token, servers want what only a page of theirs gives away.
    if (answer.status == 403 && method != "GET" && !self->cookies_.contains("_xsrf")) {
        static constexpr const char* pages[] = {"/login", "/tree"};
        for (const char* page : pages) {
            if (self->cookies_.contains("_xsrf")) break;
            co_await once(self, "GET", page, std::string(), deadline);
        }
        if (self->cookies_.contains("_xsrf"))
            answer =
                co_await once(self, std::move(method), std::move(path), std::move(body), deadline);
    }
    co_return answer;
}

awaitable<std::shared_ptr<HttpStream>> Server::connect(std::shared_ptr<Server> self,
                                                       Clock::time_point deadline) {
    co_return co_await self->http_.connect(self->url, deadline);
}

HttpHeaders Server::headers() const {
    HttpHeaders all = headers_;
    std::string cookies;
    for (const auto& [name, value] : cookies_)
        cookies += (cookies.empty() ? "" : "; ") + name + "=" + value;
    if (!cookies.empty()) all.emplace_back("Cookie", cookies);
    if (const auto token = cookies_.find("_xsrf"); token != cookies_.end())
        all.emplace_back("X-XSRFToken", token->second);
    return all;
}

std::string Server::refusal(const Answer& answer, const std::string& what) const {
    const std::string server = "the Jupyter server at " + url;
    const std::string status = " (HTTP status " + std::to_string(answer.status) + ")";
    const bool anonymous = find_header(headers_, "Authorization").empty();
    if (answer.status == 401 || answer.status == 403)
        return server +
               (anonymous ? " wants a token: set \"token\""
                          : " refuses; unless it says why, set \"token\" to a valid one") +
               status + answer.reason();
    if (answer.status == 404 || answer.status == 405)
        return "there is no Jupyter server at " + url + ": check the URL's path" + status +
               answer.reason();
    return server + " " + what + status + answer.reason();
}

awaitable<Answer> Server::once(std::shared_ptr<Server> self, std::string method, std::string path,
                               std::string body, Clock::time_point deadline) {
    HttpRequest request;
    request.method = std::move(method);
    request.url = self->url + path;
    request.headers = self->headers();
    if (!body.empty()) request.headers.emplace_back("Content-Type", "application/json");
    request.body = std::move(body);
    request.deadline = deadline;
    const auto response = co_await self->http_.send(std::move(request));
    for (const auto& [name, value] : response->headers()) {
        const auto equals = value.find('=');
        if (!same_header(name, "Set-Cookie") || equals == value.npos ||
            self->cookies_.size() > most_cookies)
            continue;
        const auto end = value.find(';');
        self->cookies_[value.substr(0, equals)] = value.substr(equals + 1, end - equals - 1);
    }
    Answer answer;
    answer.status = response->status();
    const std::string text = co_await response->read_all(longest_answer, deadline);
    boost::system::error_code not_json;
    answer.body = detail::parse_within(text, answer_depth, most_decoded_answer, not_json);
    co_return answer;
}

}  // namespace ipybox::gateway
