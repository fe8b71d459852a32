#pragma once
// The REST API of a Jupyter server.
#include <boost/json/value.hpp>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "options.hpp"

namespace ipybox::gateway {

// Text of a stranger for a message: printable, and not long.
std::string shown(std::string_view text);

struct Answer {
    unsigned status = 0;
    json::value body;  // null when it is no JSON

    // What the server says about its refusal: empty, or begins with ": ".
    std::string reason() const;
};

// One server. Its connections are kept alive.
class Server {
public:
    Server(const asio::any_io_executor& executor, const Settings& settings,
           HttpClientOptions options)
        : url(settings.url), headers_(settings.headers), http_(executor, std::move(options)) {}

    const std::string url;

    // Any status is an answer. Throws what HttpClient throws.
    static awaitable<Answer> call(std::shared_ptr<Server> self, std::string method,
                                  std::string path, std::string body, Clock::time_point deadline);
    // A stream for a WebSocket. Throws what HttpClient throws.
    static awaitable<std::shared_ptr<HttpStream>> connect(std::shared_ptr<Server> self,
                                                          Clock::time_point deadline);

    // What goes with every request: the configured ones, and the server's cookies.
    HttpHeaders headers() const;
    // For a person: why `what` did not happen, when the status is none of success.
    std::string refusal(const Answer& answer, const std::string& what) const;

private:
    static awaitable<Answer> once(std::shared_ptr<Server> self, std::string method,
                                  std::string path, std::string body, Clock::time_point deadline);

    HttpHeaders headers_;
    std::map<std::string, std::string> cookies_;
    HttpClient http_;
};
using ServerPtr = std::shared_ptr<Server>;

}  // namespace ipybox::gateway
