#pragma once
// How a client and a server find a protocol version in common, without I/O and without a clock:
// what the server does goes in, what the client is to do comes out. A server is asked by
// server/discover (2026-07-28) and, unless its answer is a modern one, by initialize (2025-11-25
// and older).
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <ipybox/detail/mcp_versions.hpp>
#include <ipybox/mcp/detail/wire.hpp>
#include <ipybox/mcp/era.hpp>
#include <ipybox/mcp/jsonrpc.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox::detail {

class Handshake {
public:
    // era: what is known of the server already.
    explicit Handshake(McpEra era) : preset_(era) {}

    enum class Action {
        discover,     // send server/discover as request(), and report what comes of it
        initialize,   // send initialize as request(), offering version(); the same
        confirm_end,  // see for a moment whether the server has ended; then proceed()
        restart,      // start the server again; then restarted()
        wait,         // nothing new: what was to be done before still is
        connected,    // agreed() holds
        give_up,      // failure() says why
    };
    enum class Failure {
        silence,  // no answer to method() in time
        answer,   // the answer to method(), or that it could not be sent, says why by itself
        version,  // problem() says why
    };
    // What the server says of itself.
    struct Agreement {
        McpEra era = McpEra::detect;
        std::string version;
        json::object capabilities, server_info;
        std::string instructions;
    };

    // The first thing to do. Call once.
    Action begin() {
        return preset_ == McpEra::legacy ? initialize(mcp_legacy_versions.front()) : discover();
    }

    // ---- what is to be done ----

    // Counts discover and initialize. Reports name it, so that one of an older request cannot be
    // taken for one of the current request.
    int request() const noexcept { return request_; }
    // Whether an answer is waited for only briefly, because there is another way. A repeated
    // discover shares the time of the first.
    bool brief() const noexcept { return phase_ == Phase::discovery && preset_ == McpEra::detect; }
    std::string_view method() const noexcept {
        return phase_ == Phase::discovery ? "server/discover" : "initialize";
    }
    std::string_view version() const noexcept { return version_; }
    const Agreement& agreed() const noexcept { return agreement_; }
    Failure failure() const noexcept { return failure_; }
    const std::string& problem() const noexcept { return problem_; }

    // ---- what happens: each returns what is to be done now ----

    // An answer (result or error) to a request. Only the first to each counts; that to
    // server/discover still does when its time has passed.
    Action answered(int request, const json::object& answer) {
        if (over_) return Action::wait;
        if (request != no_request && request == discovery_request_ && !discovery_) {
            discovery_ = read_discovery(answer);
            return phase_ == Phase::discovery && !pausing_ ? leave_discovery() : Action::wait;
        }
        if (phase_ != Phase::initialization || request != request_ || pausing_) return Action::wait;
        return read_initialize(answer);
    }
    // The time for an answer has passed.
    Action silent(int request) {
        if (over_ || pausing_ || request != request_) return Action::wait;
        if (phase_ == Phase::initialization || preset_ == McpEra::modern)
            return give_up(Failure::silence);
        return fall_back();
    }
    // The request could not be sent, or the server ended before it answered.
    Action lost(int request) {
        if (over_ || pausing_ || request != request_) return Action::wait;
        if (phase_ == Phase::initialization || preset_ == McpEra::modern)
            return give_up(Failure::answer);
        // A new process must not be asked by the id of an old one's question.
        discovery_request_ = no_request;
        if (ended_) return fall_back();
        pausing_ = true;
        return Action::confirm_end;
    }
    // The server is known to have ended; reported before what else is known. Some end when their
    // first message is not initialize.
    void ended() noexcept { ended_ = true; }
    // After confirm_end.
    Action proceed() {
        if (over_ || !pausing_ || restarting_) return Action::wait;
        pausing_ = false;
        return fall_back();
    }
    // After restart.
    Action restarted() {
        if (over_ || !restarting_) return Action::wait;
        pausing_ = restarting_ = ended_ = false;
        return initialize(mcp_legacy_versions.front());
    }

private:
    enum class Phase { discovery, initialization };
    static constexpr int no_request = 0;

    // What an answer to server/discover means.
    struct Discovery {
        enum class Kind {
            modern,
            other,         // the server may be a legacy one
            incompatible,  // a modern one, without a version in common
        };
        Kind kind = Kind::other;
        bool has_result = false;
        bool knows_ours = false;  // refused, although it lists our version
        Agreement agreement;
        std::string problem;
    };

    Action discover() {
        phase_ = Phase::discovery;
        discovery_.reset();
        discovery_request_ = ++request_;
        return Action::discover;
    }
    Action initialize(std::string_view version) {
        phase_ = Phase::initialization;
        version_ = version;
        ++request_;
        return Action::initialize;
    }
    Action fall_back() {
        if (!ended_) return initialize(mcp_legacy_versions.front());
        pausing_ = restarting_ = true;
        discovery_request_ = no_request;
        return Action::restart;
    }
    Action give_up(Failure why, std::string problem = {}) {
        over_ = true;
        failure_ = why;
        problem_ = std::move(problem);
        return Action::give_up;
    }
    Action connected(Agreement agreement) {
        over_ = true;
        agreement_ = std::move(agreement);
        return Action::connected;
    }

    Action leave_discovery() {
        // Refused, although the server says that it knows this version: once is a formality.
        if (discovery_->knows_ours && !std::exchange(asked_again_, true)) return discover();
        if (discovery_->kind != Discovery::Kind::other) return adopt_discovery();
        if (preset_ != McpEra::modern) return fall_back();
        if (!discovery_->has_result) return give_up(Failure::answer);
        return give_up(Failure::version,
                       "does not speak protocol version " + std::string(mcp_modern_version));
    }
    Action adopt_discovery() {
        if (discovery_->kind == Discovery::Kind::modern)
            return connected(std::move(discovery_->agreement));
        return give_up(Failure::version, std::move(discovery_->problem));
    }

    Action read_initialize(const json::object& answer) {
        // A modern server may have been too slow for the time that discovery had.
        if (answer.contains("error") && discovery_ && discovery_->kind != Discovery::Kind::other)
            return adopt_discovery();
        // Some servers refuse where they should propose another version.
        const auto other = newest_legacy(supported_by(answer));
        if (version_ == mcp_legacy_versions.front() && !other.empty() && other != version_)
            return initialize(other);
        const auto* result = object_of(answer, "result");
        if (result == nullptr) return give_up(Failure::answer);
        Agreement agreement;
        agreement.era = McpEra::legacy;
        agreement.version = string_of(*result, "protocolVersion");
        if (!is_legacy_version(agreement.version))
            return give_up(Failure::version, "speaks protocol version \"" +
                                                 mcp::excerpt(agreement.version, 64) +
                                                 "\"; this client knows " + mcp_versions_text());
        agreement.capabilities = part(*result, "capabilities");
        agreement.server_info = part(*result, "serverInfo");
        agreement.instructions = string_of(*result, "instructions");
        return connected(std::move(agreement));
    }

    // (2026-07-28 "Versioning")
    static Discovery read_discovery(const json::object& answer) {
        Discovery found;
        found.knows_ours = lists(supported_by(answer), mcp_modern_version);
        if (const auto* result = object_of(answer, "result")) {
            found.has_result = true;
            if (!lists(result->if_contains("supportedVersions"), mcp_modern_version)) return found;
            found.kind = Discovery::Kind::modern;
            auto& agreement = found.agreement;
            agreement.era = McpEra::modern;
            agreement.version = mcp_modern_version;
            agreement.capabilities = part(*result, "capabilities");
            agreement.server_info = part(part(*result, "_meta"), meta_server_info);
            if (agreement.server_info.empty()) agreement.server_info = part(*result, "serverInfo");
            agreement.instructions = string_of(*result, "instructions");
            return found;
        }
        const auto* error = object_of(answer, "error");
        if (error == nullptr) return found;
        const auto code = mcp::integer_of(error->if_contains("code"));
        if (code != mcp::rpc_header_mismatch && code != mcp::rpc_missing_capability &&
            code != mcp::rpc_unsupported_version)
            return found;
        if (!newest_legacy(supported_by(answer)).empty()) return found;
        found.kind = Discovery::Kind::incompatible;
        found.problem = "refuses protocol version " + std::string(mcp_modern_version) + ": " +
                        mcp::excerpt(string_of(*error, "message"), max_server_text);
        return found;
    }

    // The versions that the error "unsupported protocol version" names.
    static const json::value* supported_by(const json::object& answer) {
        const auto* error = object_of(answer, "error");
        const auto* data = error != nullptr ? object_of(*error, "data") : nullptr;
        return data != nullptr ? data->if_contains("supported") : nullptr;
    }
    static bool lists(const json::value* versions, std::string_view version) {
        if (versions == nullptr || !versions->is_array()) return false;
        for (const auto& entry : versions->get_array())
            if (entry.is_string() && entry.get_string() == version) return true;
        return false;
    }
    // Empty when there is none.
    static std::string_view newest_legacy(const json::value* versions) {
        for (const auto version : mcp_legacy_versions)
            if (lists(versions, version)) return version;
        return {};
    }
    // An object within another; empty when there is none.
    static json::object part(const json::object& whole, std::string_view key) {
        const auto* inner = object_of(whole, key);
        return inner != nullptr ? *inner : json::object();
    }

    McpEra preset_;
    Phase phase_ = Phase::discovery;
    bool over_ = false, ended_ = false, asked_again_ = false;
    bool pausing_ = false, restarting_ = false;  // no answer is waited for
    int request_ = 0, discovery_request_ = no_request;
    std::string_view version_;
    std::optional<Discovery> discovery_;
    Agreement agreement_;
    Failure failure_ = Failure::silence;
    std::string problem_;
};

}  // namespace ipybox::detail
