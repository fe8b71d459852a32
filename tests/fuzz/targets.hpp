#pragma once
// What must hold for the parsers of what peers send, whatever that is. Each target takes one
// input, and throws std::logic_error when a promise is broken; its first byte says where it is cut.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <ipybox/detail/json_memory.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/jupyter/zmtp.hpp>
#include <ipybox/mcp/jsonrpc.hpp>
#include <ipybox/mcp/sse.hpp>
#include <ipybox/net/http_client.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../app/host/protocol.hpp"
#include "../../plugins/kernel/fork/frames.hpp"

namespace ipybox::fuzz {

inline void require(bool holds, const char* promise) {
    if (!holds) throw std::logic_error(promise);
}

// Calls `use` with pieces of the text: of `size` bytes, or all of it for 0.
template <class Use>
void in_pieces(std::string_view text, std::size_t size, Use use) {
    if (size == 0) size = text.size() + 1;
    for (; !text.empty(); text.remove_prefix(std::min(size, text.size())))
        use(text.substr(0, size));
}

// Takes the size of the pieces off the input.
inline std::size_t take_size(std::string_view& input) {
    if (input.empty()) return 1;
    const auto size = static_cast<unsigned char>(input.front());
    input.remove_prefix(1);
    return std::size_t{1} + size % 64;
}

inline void sse(std::string_view input) {
    constexpr std::size_t limit = 512;
    struct Result {
        std::vector<std::string> events;
        std::string last_id;
        std::optional<std::chrono::milliseconds> retry;
        bool failed = false;
    };
    const auto parse = [](std::string_view text, std::size_t size) {
        Result result;
        mcp::SseParser parser(limit);
        in_pieces(text, size, [&](std::string_view piece) {
            parser.feed(piece);
            for (;;) {
                const auto event = parser.next();
                if (!event) result.failed = true;
                if (!event || !*event) break;
                require((*event)->data.size() <= limit, "an event is not longer than its limit");
                result.events.push_back((*event)->type + '\0' + (*event)->data);
            }
        });
        result.last_id = parser.last_id();
        result.retry = parser.retry();
        for (const char c : result.last_id)
            require(static_cast<unsigned char>(c) >= 0x20 && c != 0x7F, "an id may be a header");
        return result;
    };
    const auto size = take_size(input);
    const auto whole = parse(input, 0), cut = parse(input, size);
    if (!cut.failed) {
        require(!whole.failed && whole.events == cut.events,
                "cuts do not change what events there are");
        require(whole.last_id == cut.last_id && whole.retry == cut.retry, "nor ids and times");
    }
    // What is written comes back, with its line ends made one.
    mcp::SseParser parser;
    parser.feed(mcp::sse_event(input));
    auto event = parser.next();
    require(event && event->has_value(), "what is written is one event");
    std::string lines;
    for (std::size_t i = 0; i < input.size(); ++i) {
        if (input[i] == '\r' && i + 1 < input.size() && input[i + 1] == '\n') continue;
        lines += input[i] == '\r' ? '\n' : input[i];
    }
    require((*event)->data == lines, "and holds what was written");
}

inline void jsonrpc(std::string_view input) {
    constexpr std::size_t limit = 4096;
    const auto parse = [](std::string_view text, std::size_t size, bool& failed) {
        std::vector<std::string> messages;
        mcp::MessageSplitter splitter(limit, [&](const mcp::BadLine& line) {
            require(line.text.size() <= limit, "a line is not longer than its limit");
        });
        in_pieces(text, size, [&](std::string_view piece) {
            if (failed) return;
            const auto room = splitter.prepare();
            require(room.size >= piece.size(), "there is room for a piece");
            std::copy(piece.begin(), piece.end(), room.data);
            splitter.commit(piece.size());
            for (;;) {
                auto message = splitter.next();
                failed = failed || !message;
                if (!message || !*message) break;
                messages.push_back(detail::write_json(**message));
                boost::system::error_code wrong;
                json::parse_options deep;
                deep.max_depth = 1'000;
                const auto again = detail::parse_exact(messages.back(), wrong, deep);
                require(!wrong && detail::write_json(again) == messages.back(),
                        "what is written is read as it was");
                const auto rpc = mcp::classify(**message);
                using Kind = mcp::RpcMessage::Kind;
                if (rpc.kind == Kind::request) require(rpc.id != nullptr, "a request has an id");
                if (rpc.kind == Kind::result)
                    require(rpc.id != nullptr && rpc.body != nullptr, "a result has an id");
                if (rpc.kind == Kind::error)
                    require(rpc.body->is_object(), "an error is an object");
                if (rpc.kind == Kind::malformed)
                    require(*rpc.problem != '\0', "what is malformed is said");
                mcp::text_size(**message);
            }
        });
        return messages;
    };
    // A piece must fit into what prepare() gives.
    input = input.substr(0, std::size_t{32} << 10);
    const auto size = take_size(input);
    bool whole_failed = false, cut_failed = false;
    const auto whole = parse(input, 0, whole_failed), cut = parse(input, size, cut_failed);
    if (!cut_failed)
        require(!whole_failed && whole == cut, "cuts do not change what messages there are");
    const auto text = mcp::excerpt(input, 100);
    require(text.size() <= 105, "an excerpt is short");
    require(mcp::excerpt(text, 105) == text, "and needs no more cleaning");
}

inline void http(std::string_view input) {
    constexpr std::size_t max_header = 1024;
    struct Result {
        unsigned code = 0;
        HttpHeaders headers;
        std::string body;
        bool done = false, failed = false;
    };
    const auto parse = [](std::string_view text, std::size_t size) {
        Result result;
        net::HttpResponseParser parser(max_header, false);
        boost::beast::flat_buffer waiting;
        in_pieces(text, size, [&](std::string_view piece) {
            if (result.failed || parser.is_done()) return;
            waiting.commit(asio::buffer_copy(waiting.prepare(piece.size()), asio::buffer(piece)));
            boost::system::error_code error;
            parser.take(waiting, error);
            result.failed = error.failed();
            require(waiting.size() <= text.size(), "nothing is made up");
        });
        if (!result.failed && !parser.is_done() && parser.is_header_done() && parser.need_eof()) {
            boost::system::error_code error;
            parser.put_eof(error);
            result.failed = error.failed();
        }
        result.code = parser.code;
        result.headers = parser.headers;
        result.body = parser.body;
        result.done = parser.is_done();
        if (!result.failed && parser.is_header_done())
            require(result.code >= 100 && result.code <= 999, "a status has three digits");
        return result;
    };
    const auto size = take_size(input);
    const auto whole = parse(input, 0), cut = parse(input, size);
    if (whole.done && !whole.failed && !cut.failed)
        require(cut.done && whole.code == cut.code && whole.headers == cut.headers &&
                    whole.body == cut.body,
                "cuts do not change what a response says");

    // The first line as an address.
    const auto line = input.substr(0, input.find('\n'));
    const auto address = [](std::string_view text) -> std::optional<HttpUrl> {
        try {
            return HttpUrl::parse(text);
        } catch (const Error& error) {
            require(error.code() == errc::bad_argument, "a bad address is a bad argument");
            return std::nullopt;
        }
    };
    if (const auto url = address(line)) {
        const auto again = address(url->text());
        require(again && again->text() == url->text(), "an address has one spelling");
        for (const char c : url->text())
            require(static_cast<unsigned char>(c) > 0x20 && c != 0x7F,
                    "an address may stand in a head");
        try {
            require(url->resolve(input).path.starts_with('/'), "what it leads to is an address");
        } catch (const Error& error) {
            require(error.code() == errc::bad_argument, "a bad reference is a bad argument");
        }
    }
    net::bypasses_proxy(line, "198.51.100.7", 80);
    net::bypasses_proxy(line, "2001:db8::7", 443);
    net::bypasses_proxy(line, "host.test", 80);
}

// What follows a peer's opening.
inline void zmtp(std::string_view input) {
    constexpr jupyter::ZmtpReader::Limits limits{.frames = 8, .bytes = 200'000};
    struct Result {
        std::vector<std::vector<std::string>> messages;
        std::optional<jupyter::ZmtpFault> fault;
    };
    const auto parse = [&](std::string_view text, std::size_t size) {
        Result result;
        jupyter::ZmtpReader reader(limits);
        in_pieces(text, size, [&](std::string_view piece) {
            while (!result.fault) {
                const auto done = reader.advance();
                require(reader.announced() <= limits.bytes, "no more is announced than may be");
                if (!done) {
                    result.fault = done.error();
                } else if (*done) {
                    const auto frames = reader.frames();
                    require(!frames.empty() && frames.size() <= limits.frames,
                            "a message has few frames");
                    result.messages.emplace_back(frames.begin(), frames.end());
                    reader.drop();
                } else if (piece.empty()) {
                    break;
                } else {
                    const auto room = reader.room();
                    const auto count = std::min(room.size, piece.size());
                    require(count > 0, "there is room for a piece");
                    std::memcpy(room.data, piece.data(), count);
                    reader.add(count);
                    piece.remove_prefix(count);
                }
            }
        });
        return result;
    };
    const auto size = take_size(input);
    const auto text = jupyter::zmtp_opening("ROUTER").append(input);
    const auto whole = parse(text, 0), cut = parse(text, size), strange = parse(input, size);
    require(whole.messages == cut.messages && whole.fault == cut.fault,
            "cuts do not change what was said");
    require(strange.messages.empty() || input.starts_with('\xFF'),
            "nothing is heard without a greeting");
    // What is written comes back.
    std::string written = jupyter::zmtp_opening("ROUTER");
    for (const auto& message : whole.messages)
        for (std::size_t i = 0; i < message.size(); ++i)
            jupyter::append_zmtp_frame(written, message[i], i + 1 < message.size());
    require(parse(written, size).messages == whole.messages, "what is written comes back");
}

// What a forked kernel sends over its link.
inline void frames(std::string_view input) {
    constexpr std::size_t limit = 512;
    struct Result {
        std::vector<std::pair<char, std::string>> frames;
        bool waits = false;  // for the rest of one
    };
    const auto parse = [](std::string_view text, std::size_t size) {
        Result result;
        forked::FrameReader reader;
        in_pieces(text, size, [&](std::string_view piece) {
            reader.add(piece);
            for (;;) {
                const auto head = reader.skipping() ? std::nullopt : reader.head();
                if (head && head->size > limit) {
                    result.frames.emplace_back(head->kind, "left out");
                    reader.skip();
                } else if (const auto frame = head ? reader.next() : std::nullopt) {
                    require(frame->payload.size() <= limit, "a frame is not longer than it says");
                    result.frames.emplace_back(frame->kind, frame->payload);
                } else {
                    result.waits = reader.skipping() || head;
                    break;
                }
            }
        });
        return result;
    };
    const auto size = take_size(input);
    const auto whole = parse(input, 0), cut = parse(input, size);
    require(whole.frames == cut.frames && whole.waits == cut.waits,
            "cuts do not change what frames there are");
    // What is written comes back.
    std::string written;
    for (const auto& [kind, payload] : whole.frames) forked::append_frame(written, kind, payload);
    const auto again = parse(written, size);
    require(again.frames == whole.frames && !again.waits, "what is written comes back");
}

// What a program that embeds ipybox sends to `ipybox host`.
inline void host(std::string_view input) {
    constexpr std::size_t limit = 4096;
    static app::host::Protocol protocol;
    const auto parse = [](std::string_view text, std::size_t size) {
        std::vector<std::string> heard;
        bool initialized = false;
        const auto refused = [&heard](const json::object& answer) {
            const auto& error = answer.at("error").as_object();
            require(error.at("code").is_int64() && error.at("message").is_string() &&
                        error.at("data").as_object().contains("code"),
                    "a refusal says what kind it is");
            require(!answer.at("id").is_structured(), "and whose it is");
            heard.push_back(detail::write_json(answer));
        };
        mcp::MessageSplitter splitter(
            limit,
            [&](const mcp::BadLine& line) {
                refused(app::host::failure(line.id, line.code, line.problem));
            },
            [&](const json::array&) { heard.emplace_back("a batch"); });
        in_pieces(text, size, [&](std::string_view piece) {
            const auto room = splitter.prepare();
            std::copy(piece.begin(), piece.end(), room.data);
            splitter.commit(piece.size());
            for (;;) {
                auto message = splitter.next();
                require(message.has_value(), "so short a text does not end the stream");
                if (!*message) break;
                const auto found = protocol.read(std::move(**message), initialized);
                using Kind = app::host::Incoming::Kind;
                if (found.kind == Kind::refused) refused(found.answer);
                if (found.kind == Kind::ignored) require(!found.note.empty(), "it is said why");
                if (found.kind != Kind::request && found.kind != Kind::notification) continue;
                require(
                    initialized || found.method == "initialize" || found.kind == Kind::notification,
                    "nothing comes before initialize");
                require(!found.method.empty(), "what is taken has a method");
                initialized = initialized || found.method == "initialize";
                heard.push_back(std::string(found.method) + detail::write_json(found.params));
            }
        });
        return heard;
    };
    input = input.substr(0, std::size_t{32} << 10);
    const auto size = take_size(input);
    require(parse(input, 0) == parse(input, size), "cuts do not change what is heard");
}

struct Target {
    const char* name;  // also that of its folder of seeds
    void (*run)(std::string_view);
};
inline constexpr Target targets[] = {{"http", http}, {"sse", sse},       {"jsonrpc", jsonrpc},
                                     {"zmtp", zmtp}, {"frames", frames}, {"host", host}};

}  // namespace ipybox::fuzz
