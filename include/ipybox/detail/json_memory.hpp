#pragma once
// What JSON of peers costs in memory: text grows fifty-fold when it is parsed, if it is `[0,0,…]`.
#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/error.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse_options.hpp>
#include <boost/json/value.hpp>
#include <boost/json/value_stack.hpp>
#include <boost/system/errc.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <ipybox/detail/json_number.hpp>
#include <string_view>

namespace ipybox::detail {

namespace json = boost::json;

// A byte of text takes at most so many in memory, short of some for the value itself.
inline constexpr std::size_t largest_growth = 256;

// What the JSON of one message may take, unless somebody sets another limit.
inline constexpr std::size_t default_max_decoded = std::size_t{96} << 20;

// What an allocation takes besides its contents.
inline constexpr std::size_t per_allocation = 32;

// What a message does that is refused for it.
inline constexpr std::string_view costs_too_much = "takes more memory than is left for messages";

// At most what parse_exact() takes for `text` at any moment, the value it returns included; sound
// for a text that is no JSON as well, because the parser stops where the two would disagree.
inline std::size_t decoded_size(std::string_view text) noexcept {
    // The value, its place on the parser's stack and that of a stack that grows.
    constexpr std::size_t per_value = 4 * sizeof(json::value);
    // What an allocation has besides its contents, and a short one at least.
    constexpr std::size_t per_block = 64;
    std::size_t size = per_value, escaped = 0;
    for (std::size_t at = 0; at < text.size(); ++at) {
        switch (text[at]) {
            case '"': {
                const std::size_t start = at + 1;
                for (bool ended = false; !ended;) {
                    at = std::min(text.find('"', at + 1), text.size());
                    std::size_t slashes = 0;
                    while (at - slashes > start && text[at - slashes - 1] == '\\') ++slashes;
                    ended = at == text.size() || slashes % 2 == 0;
                }
                const auto string = text.substr(start, at - start);
                size += string.size() + per_block;
                // Put together in a place of its own, which grows as well.
                if (string.find('\\') != string.npos) escaped = std::max(escaped, string.size());
                break;
            }
            case '-':
            case '0':
            case '1':
            case '2':
            case '3':
            case '4':
            case '5':
            case '6':
            case '7':
            case '8':
            case '9': {
                const auto end =
                    std::min(text.find_first_not_of("0123456789+-.eE", at), text.size());
                // Kept as text, see exact_value(); shorter ones have room in the value.
                if (end - at > 12) size += end - at + per_block;
                at = end - 1;
                break;
            }
            case ':':
                size += 2 * per_value;
                break;
            case ',':
                size += per_value;
                break;
            case '[':
            case '{':
                size += per_value + per_block;
                break;
            default:
                break;
        }
    }
    return size + 2 * escaped;
}

// The memory that a value holds, but for unused room in it.
inline std::size_t memory_size(const json::value& value) noexcept;
inline std::size_t memory_size(const json::object& object) noexcept {
    std::size_t size = sizeof(json::value) + per_allocation;
    for (const auto& member : object)
        size += sizeof(json::key_value_pair) + member.key().size() + per_allocation +
                memory_size(member.value());
    return size;
}
inline std::size_t memory_size(const json::value& value) noexcept {
    if (const auto* object = value.if_object()) return memory_size(*object);
    std::size_t size = sizeof(json::value);
    if (const auto* text = value.if_string()) {
        if (text->size() > sizeof(json::value)) size += text->size() + per_allocation;
    } else if (const auto* array = value.if_array()) {
        if (!array->empty()) size += per_allocation;
        for (const auto& element : *array) size += memory_size(element);
    }
    return size;
}

// What the parser makes values of: as json::parse() does, but for numbers.
struct ValueBuilder {
    using Text = json::string_view;
    using Error = json::error_code;

    static constexpr std::size_t max_object_size = json::object::max_size();
    static constexpr std::size_t max_array_size = json::array::max_size();
    static constexpr std::size_t max_key_size = json::string::max_size();
    static constexpr std::size_t max_string_size = json::string::max_size();

    json::value_stack stack;

    // room: for the stack before it needs memory of its own; outlives this.
    ValueBuilder(unsigned char* room, std::size_t size, const json::storage_ptr& memory)
        : stack(memory, room, size) {
        stack.reset(memory);
    }

    bool on_document_begin(Error&) { return true; }
    bool on_document_end(Error&) { return true; }
    bool on_object_begin(Error&) { return true; }
    bool on_object_end(std::size_t size, Error&) {
        stack.push_object(size);
        return true;
    }
    bool on_array_begin(Error&) { return true; }
    bool on_array_end(std::size_t size, Error&) {
        stack.push_array(size);
        return true;
    }
    bool on_key_part(Text text, std::size_t, Error&) {
        stack.push_chars(text);
        return true;
    }
    bool on_key(Text text, std::size_t, Error&) {
        stack.push_key(text);
        return true;
    }
    bool on_string_part(Text text, std::size_t, Error&) {
        stack.push_chars(text);
        return true;
    }
    bool on_string(Text text, std::size_t, Error&) {
        stack.push_string(text);
        return true;
    }
    // Only of texts in several pieces.
    bool on_number_part(Text, Error&) { return true; }
    bool on_int64(std::int64_t number, Text text, Error&) {
        if (number == 0 && text.front() == '-')
            push_exact(text);
        else
            stack.push_int64(number);
        return true;
    }
    bool on_uint64(std::uint64_t number, Text, Error&) {
        stack.push_uint64(number);
        return true;
    }
    // The parser's own double may be off by a bit.
    bool on_double(double, Text text, Error&) {
        double number = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
        if (error == std::errc() && end == text.data() + text.size() &&
            std::string_view(DoubleText(number)) == std::string_view(text))
            stack.push_double(number);
        else
            push_exact(text);
        return true;
    }
    bool on_bool(bool value, Error&) {
        stack.push_bool(value);
        return true;
    }
    bool on_null(Error&) {
        stack.push_null();
        return true;
    }
    bool on_comment_part(Text, Error&) { return true; }
    bool on_comment(Text, Error&) { return true; }

private:
    void push_exact(Text text) {
        stack.push_chars(exact_mark);
        stack.push_string(text);
    }
};

// json::parse() which keeps the digits of numbers, see json_number.hpp.
// used: becomes how far it was read. memory: where the value is kept. What fails is in `error`.
inline json::value parse_exact(std::string_view text, boost::system::error_code& error,
                               const json::parse_options& options = {}, std::size_t* used = nullptr,
                               const json::storage_ptr& memory = {}) {
    unsigned char room[4096];
    json::basic_parser<ValueBuilder> parser(options, room, sizeof room, memory);
    json::error_code wrong;
    const auto taken = parser.write_some(false, text.data(), text.size(), wrong);
    if (!wrong && taken < text.size()) wrong = json::error::extra_data;
    if (used) *used = taken;
    error = wrong;
    return wrong ? json::value() : parser.handler().stack.release();
}

// parse_exact() for a text of a peer. depth: levels at most. memory: bytes it may take, see
// decoded_size(); boost::system::errc::not_enough_memory when that is too little.
inline json::value parse_within(std::string_view text, std::size_t depth, std::size_t memory,
                                boost::system::error_code& error) {
    // So few bytes cannot grow beyond it.
    if (text.size() > memory / largest_growth && decoded_size(text) > memory) {
        error = boost::system::errc::make_error_code(boost::system::errc::not_enough_memory);
        return json::value();
    }
    json::parse_options options;
    options.max_depth = depth;
    return parse_exact(text, error, options);
}

}  // namespace ipybox::detail
