#pragma once
// HTTP/1 as a forward proxy must read it, without I/O. Whatever two readers could understand
// differently is refused: that is how requests are smuggled past a proxy.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <ipybox/net/domain_rule.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::net {

inline constexpr std::size_t broken_line = static_cast<std::size_t>(-1);

// The length of the head that `text` begins with, its empty line included; 0 while that has not
// arrived, `broken_line` for a line that ends without CR. `scanned` begins as 0 and is kept.
inline std::size_t head_length(std::string_view text, std::size_t& scanned) {
    for (auto end = text.find('\n', scanned); end != text.npos; end = text.find('\n', scanned)) {
        if (end == 0 || text[end - 1] != '\r') return broken_line;
        if (text.substr(0, end + 1).ends_with("\r\n\r\n")) return end + 1;
        scanned = end + 1;
    }
    scanned = text.size();
    return 0;
}

// Of ASCII: what stands in heads has no other letters.
inline char lower_case(char c) noexcept {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}
inline std::string lower_case(std::string_view text) {
    std::string result(text);
    for (char& c : result) c = lower_case(c);
    return result;
}
inline bool same_without_case(std::string_view a, std::string_view b) noexcept {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](char x, char y) { return lower_case(x) == lower_case(y); });
}

inline bool is_http_token(std::string_view text) {
    constexpr std::string_view marks = "!#$%&'*+-.^_`|~";
    return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
               marks.find(c) != marks.npos;
    });
}

inline std::string_view trim_blanks(std::string_view text) {
    const auto start = text.find_first_not_of(" \t");
    if (start == text.npos) return {};
    return text.substr(start, text.find_last_not_of(" \t") - start + 1);
}

// A start line and its fields, all of it views into the parsed text.
struct HttpHead {
    std::string_view start;
    std::vector<std::pair<std::string_view, std::string_view>> fields;

    // The problem, or empty. `text` is what head_length() measured.
    std::string parse(std::string_view text) {
        for (bool first = true; text != "\r\n"; first = false) {
            const auto end = text.find("\r\n");
            const auto line = text.substr(0, end);
            text.remove_prefix(end + 2);
            for (const char c : line)
                if ((static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7F)
                    return "a control character in the head";
            if (first) {
                start = line;
                continue;
            }
            if (line.front() == ' ' || line.front() == '\t') return "a folded header line";
            const auto colon = line.find(':');
            if (colon == line.npos || !is_http_token(line.substr(0, colon)))
                return "a header line without a proper name";
            fields.emplace_back(line.substr(0, colon), trim_blanks(line.substr(colon + 1)));
        }
        return start.empty() ? "an empty start line" : "";
    }

    // Every field that is meant for the next machine, as lines. What belongs to this connection,
    // by its name or because Connection lists it, is left out; so is `except`, in lower case.
    std::string forwarded(const std::vector<std::string_view>& except) const {
        std::vector<std::string> listed;
        for (const auto& [name, value] : fields) {
            if (lower_case(name) != "connection") continue;
            for (auto rest = value; !rest.empty();) {
                const auto comma = std::min(rest.find(','), rest.size());
                listed.push_back(lower_case(trim_blanks(rest.substr(0, comma))));
                rest.remove_prefix(std::min(comma + 1, rest.size()));
            }
        }
        constexpr std::string_view hops[] = {
            "connection", "keep-alive", "te", "trailer", "upgrade", "proxy", "http2-settings"};
        std::string lines;
        for (const auto& [name, value] : fields) {
            const auto key = lower_case(name);
            if (key.starts_with("proxy-") ||
                std::find(std::begin(hops), std::end(hops), key) != std::end(hops) ||
                std::find(except.begin(), except.end(), key) != except.end() ||
                std::find(listed.begin(), listed.end(), key) != listed.end())
                continue;
            lines.append(name).append(": ").append(value).append("\r\n");
        }
        return lines;
    }
};

// What a client wants of a proxy.
struct ProxyRequest {
    enum class Body { none, length, chunked };
    std::string method;
    std::string host;  // as given, to be judged
    std::uint16_t port = 0;
    bool tunnel = false;  // CONNECT
    std::string head;     // what the server is to read, when not a tunnel
    Body body = Body::none;
    std::uint64_t length = 0;

    // The problem, or empty. `text` is what head_length() measured.
    std::string parse(std::string_view text) {
        HttpHead read;
        if (auto problem = read.parse(text); !problem.empty()) return problem;
        const auto first = read.start.find(' ');
        const auto last = read.start.rfind(' ');
        if (first == read.start.npos || first == last) return "not an HTTP/1 request line";
        const auto target = read.start.substr(first + 1, last - first - 1);
        const auto protocol = read.start.substr(last + 1);
        method = read.start.substr(0, first);
        if (!is_http_token(method) || (protocol != "HTTP/1.1" && protocol != "HTTP/1.0"))
            return "not an HTTP/1 request line";
        for (const char c : target)
            if (c <= 0x20 || c >= 0x7F || c == '#') return "a character no request target may have";
        if (auto problem = parse_framing(read, protocol == "HTTP/1.1"); !problem.empty())
            return problem;
        tunnel = method == "CONNECT";
        if (tunnel) {
            if (body == Body::chunked || length != 0) return "CONNECT with a body";
            return parse_authority(target, 0);
        }
        // Another scheme asks for what only a tunnel gives.
        constexpr std::string_view scheme = "http://";
        if (lower_case(target.substr(0, scheme.size())) != scheme)
            return target.starts_with('/') ? "a request for a server, not for a proxy"
                                           : "only http:// and CONNECT are proxied";
        const auto rest = target.substr(scheme.size());
        const auto path = std::min(rest.find_first_of("/?"), rest.size());
        if (auto problem = parse_authority(rest.substr(0, path), 80); !problem.empty())
            return problem;
        head = method + " ";
        if (path == rest.size() || rest[path] == '?') head += '/';
        head.append(rest.substr(path))
            .append(" ")
            .append(protocol)
            .append("\r\nHost: ")
            .append(host);
        if (port != 80) head += ":" + std::to_string(port);
        head += "\r\n" + read.forwarded({"host", "content-length", "transfer-encoding"});
        if (body == Body::chunked) head += "Transfer-Encoding: chunked\r\n";
        if (body == Body::length) head += "Content-Length: " + std::to_string(length) + "\r\n";
        head += "Connection: close\r\n\r\n";
        return {};
    }

private:
    std::string parse_authority(std::string_view text, std::uint16_t otherwise) {
        const auto [name, number] = split_port(text);
        const bool has_port = name.size() != text.size() && !text.ends_with(']');
        host = has_port ? name : text;
        if (!has_port && otherwise == 0) return "CONNECT needs HOST:PORT";
        const auto parsed = has_port ? parse_port(number) : otherwise;
        if (!parsed) return "not a port from 1 to 65535";
        port = *parsed;
        return {};
    }

    std::string parse_framing(const HttpHead& read, bool may_chunk) {
        int hosts = 0;
        for (const auto& [name, value] : read.fields) {
            const auto key = lower_case(name);
            if (key == "host" && ++hosts > 1) return "more than one Host";
            if (key == "transfer-encoding") {
                if (body != Body::none) return "more than one length of the body";
                if (!may_chunk || lower_case(value) != "chunked")
                    return "a Transfer-Encoding other than chunked";
                body = Body::chunked;
            }
            if (key == "content-length") {
                if (body != Body::none) return "more than one length of the body";
                const auto [end, error] =
                    std::from_chars(value.data(), value.data() + value.size(), length);
                if (error != std::errc() || end != value.data() + value.size())
                    return "a Content-Length that is no number";
                body = Body::length;
            }
        }
        return {};
    }
};

// The head of an answer as the client may have it, in `out`, and its status. The problem, or
// empty. The body ends with the connection, whatever the server thinks.
inline std::string rewrite_response(std::string_view text, unsigned& status, std::string& out) {
    HttpHead read;
    if (auto problem = read.parse(text); !problem.empty()) return problem;
    const auto number = read.start.substr(0, 12);
    const bool http = number.starts_with("HTTP/1.") && number.size() == 12 && number[8] == ' ';
    const auto [end, error] =
        std::from_chars(number.data() + std::min<std::size_t>(9, number.size()),
                        number.data() + number.size(), status);
    if (!http || error != std::errc() || end != number.data() + number.size() || status < 100 ||
        (read.start.size() > 12 && read.start[12] != ' '))
        return "not an HTTP/1 status line";
    if (status == 101) return "a change of protocol nobody asked for";
    out.append(read.start).append("\r\n").append(read.forwarded({}));
    out += status < 200 ? "\r\n" : "Connection: close\r\n\r\n";
    return {};
}

// Reads a chunked body and writes a new one: chunk extensions and trailers are left out, and what
// follows the body is not touched.
class ChunkedBody {
public:
    enum class State { more, done, bad };

    // Takes `in`, appends to `out`. Once done or bad it takes nothing.
    State put(std::string_view in, std::string& out) {
        while (!in.empty() && state_ == State::more) {
            if (data_ > 0) {
                const auto size =
                    static_cast<std::size_t>(std::min<std::uint64_t>(data_, in.size()));
                char digits[16];
                const auto end = std::to_chars(digits, digits + sizeof digits, size, 16).ptr;
                out.append(digits, end).append("\r\n").append(in.substr(0, size)).append("\r\n");
                in.remove_prefix(size);
                data_ -= size;
                after_data_ = data_ == 0;
                continue;
            }
            line_ += in.front();
            in.remove_prefix(1);
            if (line_.size() > max_line || ++overhead_ > max_overhead) state_ = State::bad;
            if (line_.back() == '\n') {
                state_ = line_.ends_with("\r\n") ? end_of_line(out) : State::bad;
                line_.clear();
            }
        }
        return state_;
    }

private:
    static constexpr std::size_t max_line = 4096;
    static constexpr std::size_t max_overhead = 64 * 1024;  // of lines without data between

    State end_of_line(std::string& out) {
        auto line = std::string_view(line_);
        line.remove_suffix(2);
        if (line.find('\r') != line.npos) return State::bad;
        if (after_data_) {
            after_data_ = false;
            return line.empty() ? State::more : State::bad;
        }
        if (trailers_) {
            if (!line.empty()) return State::more;
            out += "0\r\n\r\n";
            return State::done;
        }
        const auto [end, error] =
            std::from_chars(line.data(), line.data() + line.size(), data_, 16);
        const auto rest = line.substr(static_cast<std::size_t>(end - line.data()));
        if (error != std::errc() || !(rest.empty() || rest.front() == ';')) return State::bad;
        trailers_ = data_ == 0;
        if (!trailers_) overhead_ = 0;
        return State::more;
    }

    State state_ = State::more;
    std::string line_;
    std::uint64_t data_ = 0;
    std::size_t overhead_ = 0;
    bool after_data_ = false;
    bool trailers_ = false;
};

}  // namespace ipybox::net
