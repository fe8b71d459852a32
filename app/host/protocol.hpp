#pragma once
// What may be said to `ipybox host`: every message is checked against protocol.json before anything
// is done about it. No I/O.
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_memory.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/nearest.hpp>
#include <ipybox/detail/schema_document.hpp>
#include <ipybox/detail/schema_validator.hpp>
#include <ipybox/mcp/jsonrpc.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "host_schema.hpp"

namespace ipybox::app::host {

// Codes of JSON-RPC; what fails after the checks has rpc_failed.
inline constexpr int rpc_failed = -32000;

// Bytes of one line to the host.
inline constexpr std::size_t max_message = std::size_t{64} << 20;
// Bytes of a file in one message.
inline constexpr std::size_t max_transfer = std::size_t{16} << 20;

// Params that do not fit, found by whoever uses them.
class BadParams : public std::runtime_error {
public:
    // field: a JSON pointer into params. what: to follow it, as in "is no session".
    BadParams(std::string field, const std::string& what)
        : std::runtime_error(field + ": " + what), field_(std::move(field)) {}
    const std::string& field() const noexcept { return field_; }

private:
    std::string field_;
};

// kind: what data.code says. field: a JSON pointer into params, or empty.
inline json::object failure(json::value id, int code, std::string_view text,
                            std::string_view kind = "bad_argument", std::string_view field = {}) {
    auto message = mcp::rpc_error(std::move(id), code, text);
    json::object data;
    data.emplace("code", kind);
    if (!field.empty()) data.emplace("field", field);
    message.at("error").as_object().emplace("data", std::move(data));
    return message;
}

// What a message of the client asks for.
struct Incoming {
    enum class Kind { request, notification, refused, ignored };
    Kind kind = Kind::ignored;
    json::value id;           // of a request
    std::string_view method;  // valid as long as the Protocol
    json::object params;      // fit the schema
    json::object answer;      // if refused
    std::string note;         // if ignored: why, for the log
};

// protocol.json, and what it says of messages. Used on one thread.
class Protocol {
public:
    Protocol() : file_(parsed()), params_(params_of(file_)), document_(params_) {}
    Protocol(const Protocol&) = delete;
    Protocol& operator=(const Protocol&) = delete;

    const json::object& file() const { return file_.get_object(); }
    // The names in a section: methods, client_notifications, notifications.
    json::array names(std::string_view section) const {
        json::array names;
        for (const auto& entry : file().at(section).as_object()) names.emplace_back(entry.key());
        return names;
    }

    // What to make of a message. initialized: `initialize` was answered.
    Incoming read(json::object message, bool initialized) {
        Incoming found;
        auto rpc = mcp::classify(message);
        using Kind = mcp::RpcMessage::Kind;
        if (rpc.kind == Kind::result || rpc.kind == Kind::error) {
            found.note = "an answer, although nothing was asked";
            return found;
        }
        if (rpc.id != nullptr) found.id = std::move(*rpc.id);
        if (rpc.kind == Kind::malformed)
            return refuse(std::move(found), mcp::rpc_invalid_request,
                          std::string("this message is no request: ") + rpc.problem);
        const bool asks = rpc.kind == Kind::request;
        const auto* entry = find_entry(asks ? "methods" : "client_notifications", rpc.method);
        const std::string shown = mcp::excerpt(rpc.method, 100);
        if (entry == nullptr) {
            if (asks)
                return refuse(std::move(found), mcp::rpc_method_not_found,
                              "there is no method \"" + shown + '"' + meant(rpc.method));
            found.note = "the notification \"" + shown + "\" is not known";
            return found;
        }
        found.method = entry->key();
        if (asks && !initialized && found.method != "initialize")
            return refuse(std::move(found), mcp::rpc_invalid_request,
                          "nothing is done before `initialize` was answered: send that first");
        json::value params = json::object();
        if (rpc.body != nullptr) params = std::move(*rpc.body);
        if (const auto problem = problem_of(found.method, params)) {
            // A notification has no answer.
            if (asks)
                return refuse(std::move(found), mcp::rpc_invalid_params, *problem,
                              field_of(*problem));
            found.note = std::string(found.method) + ": " + *problem;
            return found;
        }
        found.params = std::move(params.get_object());
        round_numbers(found.params);
        found.kind = asks ? Incoming::Kind::request : Incoming::Kind::notification;
        return found;
    }

private:
    static json::value parsed() {
        boost::system::error_code error;
        auto file = detail::parse_exact(schema_text, error);
        if (error || !file.is_object()) throw std::logic_error("protocol.json is no JSON object");
        detail::round_numbers(file);
        return file;
    }
    // One schema whose properties are the params of methods and notifications.
    static json::value params_of(const json::value& file) {
        json::object properties;
        for (const char* section : {"methods", "client_notifications"})
            for (const auto& [name, entry] : file.at(section).as_object())
                properties.emplace(name, entry.at("params"));
        json::object root;
        root.emplace("$schema", file.at("$schema"));
        root.emplace("properties", std::move(properties));
        root.emplace("$defs", file.at("$defs"));
        return root;
    }

    const json::key_value_pair* find_entry(std::string_view section, std::string_view name) const {
        const auto& entries = file().at(section).as_object();
        const auto found = entries.find(name);
        return found == entries.end() ? nullptr : &*found;
    }
    std::string meant(std::string_view method) const {
        detail::NearestName nearest(method);
        for (const auto& entry : file().at("methods").as_object()) nearest.offer(entry.key());
        if (nearest.best().empty())
            return "; `initialize` answers with all that there are, in capabilities.methods";
        return "; did you mean \"" + std::string(nearest.best()) + "\"?";
    }

    std::optional<std::string> problem_of(std::string_view method, const json::value& params) {
        if (!params.is_object()) return "params must be an object";
        const auto* schema = detail::find(document_.root().names(detail::Key::properties), method);
        if (schema == nullptr) throw std::logic_error("a method without params");
        detail::SchemaValidator validator(document_);
        return validator.problem(*schema, params);
    }
    // "/options/timeout" of "/options/timeout: must be a number".
    static std::string_view field_of(std::string_view problem) {
        return problem.starts_with('/') ? problem.substr(0, problem.find(": "))
                                        : std::string_view();
    }
    static Incoming refuse(Incoming found, int code, std::string_view text,
                           std::string_view field = {}) {
        found.kind = Incoming::Kind::refused;
        found.answer = failure(std::move(found.id), code, text, "bad_argument", field);
        found.params.clear();
        return found;
    }
    // Doubles, but for what goes on to tools and what is compared with it.
    static void round_numbers(json::object& params) {
        for (auto& member : params) {
            if (member.key() == "arguments" || member.key() == "approval") continue;
            if (member.key() == "options" && member.value().is_object())
                round_numbers(member.value().get_object());
            else
                detail::round_numbers(member.value());
        }
    }

    json::value file_, params_;
    detail::SchemaDocument document_;
};

}  // namespace ipybox::app::host
