// Files of sessions, generated APIs and audit logs.
#include <boost/asio/co_spawn.hpp>
#include <ipybox/approval/audit_key.hpp>
#include <ipybox/approval/audit_verification.hpp>
#include <ipybox/detail/base64.hpp>
#include <ipybox/tools/apigen.hpp>

#include "../audit_records.hpp"
#include "../listed_tools.hpp"
#include "answers.hpp"
#include "host.hpp"
#include "options.hpp"

namespace ipybox::app::host {
namespace {

// Files that come in parts and are not complete, at once in one session.
constexpr std::size_t max_uploads = 16;

awaitable<json::object> upload(HostPtr host, RequestPtr request) {
    const auto session = host->session_of(*request);
    auto& params = request->params;
    const auto path = text_of(params, "path");
    auto bytes = detail::decode_base64(params.at("data").as_string());
    if (!bytes) throw BadParams("/data", "is no base64");
    const auto offset = count_of(params, "offset", 0);
    const bool overwrite = flag_of(params, "overwrite", true), more = flag_of(params, "more");
    params.clear();
    std::string whole;
    // What came so far is taken over, or is not wanted any more.
    if (const auto found = session->uploads.find(path); found != session->uploads.end()) {
        host->release(found->second.size());
        whole = std::move(found->second);
        session->uploads.erase(found);
        if (offset == 0) whole.clear();
    }
    if (offset != whole.size())
        throw BadParams("/offset", "must be " + std::to_string(whole.size()) +
                                       ", where the part before ended; the file has to begin anew");
    if (bytes->size() > CodeExecutor::max_file - whole.size())
        throw BadParams("/data", "makes the file longer than " +
                                     std::to_string(CodeExecutor::max_file) + " bytes");
    whole += *bytes;
    const auto size = whole.size();
    if (more) {
        if (session->uploads.size() >= max_uploads)
            throw Error(errc::busy, "more than " + std::to_string(max_uploads) +
                                        " files come in parts at once; end one first");
        if (!host->hold(size))
            throw Error(errc::busy, "too much data is held in uploads and requests at once");
        session->uploads.emplace(path, std::move(whole));
    } else {
        co_await session->code->upload(path, std::move(whole), overwrite);
    }
    co_return only("size", size);
}

awaitable<json::object> download(HostPtr host, RequestPtr request) {
    const auto session = host->session_of(*request);
    const auto& params = request->params;
    const auto path = text_of(params, "path");
    const auto offset = count_of(params, "offset", 0);
    const auto limit = static_cast<std::size_t>(count_of(params, "limit", max_transfer));
    co_await Outbox::room(host->outbox);
    FilePart part;
    if (flag_of(params, "here"))
        part = session->code->read_here(path, offset, limit);
    else
        part = co_await session->code->download(path, offset, limit);
    json::object result;
    result.emplace("data", detail::encode_base64(part.bytes));
    result.emplace("size", part.size);
    co_return result;
}

json::array remarks_json(const std::vector<SkippedTool>& tools) {
    json::array array;
    for (const auto& tool : tools) {
        json::object entry;
        entry.emplace("tool", tool.tool);
        entry.emplace("reason", tool.reason);
        array.push_back(std::move(entry));
    }
    return array;
}

json::object package_json(const GeneratedPackage& package, const json::array& listed, bool written,
                          const std::string& kept_as) {
    std::map<std::string_view, std::string_view> modules;
    for (const auto& made : package.tools) modules.emplace(made.tool, made.module);
    json::array tools;
    for (const auto& tool : listed) {
        const auto made = modules.find(detail::string_of(tool.as_object(), "name"));
        if (made == modules.end()) continue;
        json::object entry;
        entry.emplace("tool", made->first);
        entry.emplace("module", made->second);
        tools.push_back(std::move(entry));
        modules.erase(made);
    }
    json::object result;
    result.emplace("tools", std::move(tools));
    result.emplace("untyped", remarks_json(package.untyped));
    result.emplace("skipped", remarks_json(package.skipped));
    result.emplace("written", written);
    result.emplace("kept_as", handle_json(kept_as));
    return result;
}

awaitable<json::object> generate_api(HostPtr host, RequestPtr request) {
    auto& params = request->params;
    const auto name = text_of(params, "name");
    const auto root = text_of(params, "root_dir");
    const auto style = flag_of(params, "async_api") ? ApiStyle::async : ApiStyle::blocking;
    check_server_name(name);
    auto server = check_server_params(take_object(params, "params"), "params");
    const auto listed = co_await listed_tools(
        host->registry, name, std::move(server), variables_of(params, "variables"),
        seconds_of(params, "connect_timeout", 30), host->logger);
    const auto package = generate_package(name, listed, style);
    std::string kept_as;
    const bool written = write_package(root, name, package, &kept_as);
    co_return package_json(package, listed, written, kept_as);
}

// Runs `work`, which may take long, on a thread that nothing else waits for.
awaitable<json::object> on_reader(HostPtr host, std::function<json::object()> work) {
    struct Counted {
        HostPtr host;
        ~Counted() { --host->reading; }
    };
    ++host->reading;
    const Counted counted{host};
    auto task = [](std::function<json::object()> one) -> awaitable<json::object> {
        co_return one();
    }(std::move(work));
    if (!host->reader) host->reader = std::make_unique<asio::thread_pool>(1);
    auto result = co_await asio::co_spawn(*host->reader, std::move(task), asio::use_awaitable);
    co_return result;
}

json::object records_of(const std::string& file, std::uint64_t from, std::size_t limit,
                        const std::string& session) {
    // Bytes of records in one answer.
    constexpr std::size_t most = std::size_t{8} << 20;
    auto in = open_records(file);
    const approval::Glob sessions(session);
    json::array records;
    json::value next;
    std::uint64_t line_number = 0, broken = 0;
    std::size_t size = 0;
    for (std::string line; std::getline(in, line); ++line_number) {
        if (line_number < from || line.empty()) continue;
        if (records.size() >= limit || size > most) {
            next = line_number;
            break;
        }
        auto record = parse_record(line);
        if (!record) {
            ++broken;
        } else if (session == "*" || fits(sessions, field(*record, "session"))) {
            size += line.size();
            records.push_back(std::move(*record));
        }
    }
    json::object result;
    result.emplace("records", std::move(records));
    result.emplace("next", std::move(next));
    result.emplace("broken", broken);
    return result;
}

awaitable<json::object> show_audit(HostPtr host, RequestPtr request) {
    const auto& params = request->params;
    std::function<json::object()> work =
        [file = text_of(params, "file"), from = count_of(params, "from", 0),
         limit = static_cast<std::size_t>(count_of(params, "limit", 1000)),
         session = text_of(params, "session", "*")] {
            return records_of(file, from, limit, session);
        };
    co_await Outbox::room(host->outbox);
    co_return co_await on_reader(host, std::move(work));
}

json::object verification_of(const std::vector<std::filesystem::path>& files,
                             const AuditVerificationOptions& options) {
    using Outcome = AuditVerification::Outcome;
    const auto found = verify_audit_log(files, options);
    json::object result;
    result.emplace("outcome", found.outcome == Outcome::whole     ? "whole"
                              : found.outcome == Outcome::unknown ? "unknown"
                                                                  : "broken");
    result.emplace("what", found.what);
    result.emplace("notes", texts_json(found.notes));
    result.emplace("first", found.first);
    result.emplace("last", found.last);
    return result;
}

awaitable<json::object> verify_audit(HostPtr host, RequestPtr request) {
    const auto& params = request->params;
    std::vector<std::filesystem::path> files;
    for (const auto& file : texts_of(params, "files")) files.emplace_back(file);
    AuditVerificationOptions options;
    for (const auto& key : texts_of(params, "keys")) options.keys.emplace_back(key);
    options.head = text_of(params, "head");
    std::function<json::object()> work = [files, options] {
        return verification_of(files, options);
    };
    co_return co_await on_reader(host, std::move(work));
}

awaitable<json::object> show_audit_key(HostPtr host, RequestPtr) {
    std::function<json::object()> work = [] {
        return only("pem", AuditKey::of(approval::audit_directory()).public_text());
    };
    co_return co_await on_reader(host, std::move(work));
}

}  // namespace

Methods file_methods() {
    return {{"session/upload", nullptr, upload},        {"session/download", nullptr, download},
            {"apigen/generate", nullptr, generate_api}, {"audit/show", nullptr, show_audit},
            {"audit/verify", nullptr, verify_audit},    {"audit/key", nullptr, show_audit_key}};
}

}  // namespace ipybox::app::host
