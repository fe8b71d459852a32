#pragma once
// What is kept of MCP servers that want authorization: their tokens, the clients that were
// registered for them, and to whom configured clients belong.
#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/oauth/detail/token_store.hpp>
#include <ipybox/oauth/protocol.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox::detail {

namespace json = boost::json;

// Now, since 1970.
inline std::int64_t unix_seconds() {
    return std::chrono::duration_cast<std::chrono::seconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
}

struct OAuthToken {
    std::string issuer;
    std::string client_id;
    std::string access;
    std::string type;
    std::string refresh;
    std::string scope;      // granted, as far as known
    std::string requested;  // in the authorization
    std::string key;        // PEM; empty: not bound to one
    std::int64_t expires_at = 0;
    std::int64_t lifetime = 0;

    bool expired() const { return expires_at != 0 && unix_seconds() >= expires_at; }
    // Early enough for a request to arrive with it.
    bool expires_soon() const {
        return expires_at != 0 &&
               unix_seconds() >= expires_at - std::min<std::int64_t>(60, lifetime / 4);
    }
};

// The records of one MCP server in the token store. All functions throw errc::io_error when that
// cannot be used.
class OAuthRecords {
public:
    // A token counts for the client it was given to: one configured by name, a metadata document,
    // or whatever was registered.
    OAuthRecords(std::filesystem::path file, std::string resource, std::string client,
                 std::string grant)
        : store_(std::move(file)),
          resource_(std::move(resource)),
          client_(std::move(client)),
          grant_(std::move(grant)) {}

    bool persistent() const noexcept { return store_.persistent(); }
    UniqueFd try_lock(std::string_view name) const { return store_.try_lock(name); }

    std::optional<OAuthToken> token() const {
        const auto content = store_.read();
        const auto* list = content.if_contains("tokens");
        if (list == nullptr || !list->is_array()) return std::nullopt;
        for (const auto& record : list->get_array()) {
            if (!is_ours(record)) continue;
            const auto& fields = record.get_object();
            OAuthToken found;
            found.issuer = string_of(fields, "issuer");
            found.client_id = string_of(fields, "client_id");
            found.access = string_of(fields, "access_token");
            found.type = string_of(fields, "token_type");
            found.refresh = string_of(fields, "refresh_token");
            found.scope = string_of(fields, "scope");
            found.requested = string_of(fields, "requested_scope");
            found.key = string_of(fields, "dpop_key");
            found.expires_at = oauth::seconds_member(fields, "expires_at").value_or(0);
            found.lifetime = oauth::seconds_member(fields, "lifetime").value_or(0);
            if (!oauth::is_header_text(found.access) || found.issuer.empty()) continue;
            return found;
        }
        return std::nullopt;
    }
    // Takes the place of the one there was.
    void save(const OAuthToken& fresh) {
        json::object record;
        record["resource"] = resource_;
        record["client"] = client_;
        record["grant"] = grant_;
        record["issuer"] = fresh.issuer;
        record["client_id"] = fresh.client_id;
        record["access_token"] = fresh.access;
        record["token_type"] = fresh.type;
        record["refresh_token"] = fresh.refresh;
        record["scope"] = fresh.scope;
        record["requested_scope"] = fresh.requested;
        record["dpop_key"] = fresh.key;
        record["expires_at"] = fresh.expires_at;
        record["lifetime"] = fresh.lifetime;
        store_.update([&](json::object& content) {
            json::array kept = others(content);
            kept.push_back(std::move(record));
            content["tokens"] = std::move(kept);
        });
    }
    void forget_token() {
        store_.update([&](json::object& content) {
            if (content.contains("tokens")) content["tokens"] = others(content);
        });
    }

    // A registration belongs to the authorization server that made it.
    std::optional<json::object> client(std::string_view issuer) const {
        const auto content = store_.read();
        const auto* clients = object_of(content, "clients");
        const auto* client = clients != nullptr ? object_of(*clients, issuer) : nullptr;
        if (client == nullptr) return std::nullopt;
        const auto expires = oauth::seconds_member(*client, "secret_expires_at").value_or(0);
        if (string_of(*client, "client_id").empty() || (expires != 0 && unix_seconds() >= expires))
            return std::nullopt;
        return *client;
    }
    void save_client(std::string_view issuer, json::object record) {
        store_.update(
            [&](json::object& content) { member(content, "clients")[issuer] = std::move(record); });
    }
    void forget_client(std::string_view issuer) {
        store_.update([&](json::object& content) { member(content, "clients").erase(issuer); });
    }

    // The authorization server that the configured client was first used with; empty if none.
    std::string bound_to() const {
        const auto content = store_.read();
        const auto* bindings = object_of(content, "bindings");
        return bindings ? std::string(string_of(*bindings, key())) : std::string();
    }
    void bind(std::string_view issuer) {
        store_.update([&](json::object& content) { member(content, "bindings")[key()] = issuer; });
    }
    void unbind() {
        store_.update([&](json::object& content) { member(content, "bindings").erase(key()); });
    }

private:
    std::string key() const { return resource_ + " " + client_; }
    bool is_ours(const json::value& record) const {
        if (!record.is_object()) return false;
        const auto& fields = record.get_object();
        return string_of(fields, "resource") == resource_ &&
               string_of(fields, "client") == client_ && string_of(fields, "grant") == grant_;
    }
    // The tokens that are not ours.
    json::array others(const json::object& content) const {
        json::array kept;
        if (const auto* list = content.if_contains("tokens"); list && list->is_array())
            for (const auto& record : list->get_array())
                if (!is_ours(record)) kept.push_back(record);
        return kept;
    }
    static json::object& member(json::object& content, std::string_view name) {
        auto& value = content[name];
        if (!value.is_object()) value = json::object();
        return value.get_object();
    }

    TokenStore store_;
    std::string resource_, client_, grant_;
};

}  // namespace ipybox::detail
