#include "files.hpp"

#include <algorithm>
#include <cerrno>
#include <ipybox/detail/utf8.hpp>

namespace ipybox::gateway {
namespace {
using namespace std::chrono_literals;

// Bytes of a file in one answer.
constexpr std::size_t file_block = std::size_t{1} << 20;

// One request for a file, withdrawn at the end if it is not answered.
class FileRequest {
public:
    FileRequest(LinkPtr link, std::string op, std::filesystem::path path, std::size_t wanted)
        : link_(std::move(link)),
          op_(std::move(op)),
          path_(std::move(path)),
          number_(++link_->last_transfer) {
        const auto name = path_.generic_string();
        if (!detail::is_utf8(name))
            throw Error(errc::bad_argument, "path: is not valid UTF-8; rename the file");
        link_->transfers[number_].wanted = wanted;
    }
    ~FileRequest() {
        const bool answered = transfer().answer.has_value();
        link_->transfers.erase(number_);
        if (answered || link_->over()) return;
        auto content = message("abandon");
        link_->tell_surely(std::move(content));
    }
    FileRequest(const FileRequest&) = delete;
    FileRequest& operator=(const FileRequest&) = delete;

    json::object first() const {
        auto content = message(op_);
        content["path"] = path_.generic_string();
        return content;
    }
    json::object message(const std::string& op) const {
        json::object content;
        content["op"] = op;
        content["id"] = number_;
        return content;
    }
    FileTransfer& transfer() const { return link_->transfers.at(number_); }

    // Waits until it is answered, or until less than `most` bytes are on the way to the kernel.
    static awaitable<void> wait(std::shared_ptr<FileRequest> self, std::size_t most) {
        const auto link = self->link_;
        // A connection that breaks may come back meanwhile.
        const auto deadline = Clock::now() + link->settings.reconnect_timeout + 60s;
        for (;;) {
            link->require_usable();
            if (self->transfer().answer || link->delivery.sent_bytes() < most) co_return;
            if (Clock::now() >= deadline)
                throw Error(errc::timed_out,
                            self->path_.string() +
                                ": the kernel's machine does not answer in time; try again");
            co_await link->changed.wait(deadline);
            co_await throw_if_cancelled();
        }
    }

    // Throws what a file of this machine would give.
    void require_good(bool overwrite) const {
        const auto& answer = *transfer().answer;
        if (detail::string_of(answer, "problem") == "irregular") detail::throw_irregular(path_);
        const auto code = ReliableLink::number_in(answer, "errno");
        if (!code) return;
        errno = static_cast<int>(std::min<std::uint64_t>(*code, 4095));
        if (answer.contains("directory")) detail::throw_io_error(path_.parent_path().string());
        detail::throw_not_placed(path_, overwrite);
    }

private:
    LinkPtr link_;
    std::string op_;
    std::filesystem::path path_;
    std::uint64_t number_;
};

}  // namespace

awaitable<void> write_distant(LinkPtr link, std::filesystem::path path, std::string bytes,
                              bool overwrite) {
    link->require_usable();
    const auto request = std::make_shared<FileRequest>(link, "write", std::move(path), 0);
    auto content = request->first();
    content["overwrite"] = overwrite;
    for (std::size_t at = 0; !request->transfer().answer; at += piece) {
        const bool end = bytes.size() <= at + piece;
        content["end"] = end;
        link->tell_surely(std::move(content), bytes.substr(at, piece));
        if (end) break;
        content = request->message("write");
        co_await FileRequest::wait(request, ReliableLink::send_window);
    }
    co_await FileRequest::wait(request, 0);
    request->require_good(overwrite);
}

awaitable<FilePart> read_distant(LinkPtr link, std::filesystem::path path, std::uint64_t offset,
                                 std::size_t limit) {
    link->require_usable();
    FilePart part;
    std::string version;
    for (;;) {
        const std::size_t wanted = std::min(file_block, limit - part.bytes.size());
        const auto request = std::make_shared<FileRequest>(link, "read", path, wanted);
        auto content = request->first();
        content["offset"] = offset + part.bytes.size();
        content["limit"] = wanted;
        link->tell_surely(std::move(content));
        co_await FileRequest::wait(request, 0);
        request->require_good(true);
        const auto& transfer = request->transfer();
        const auto size = ReliableLink::number_in(*transfer.answer, "size");
        const std::string found(detail::string_of(*transfer.answer, "version"));
        if (!size) {
            link->end_protocol("a file without its size");
            link->require_usable();
        }
        if (!version.empty() && found != version)
            throw Error(errc::io_error,
                        path.string() + ": was changed while it was read; try again");
        version = found;
        part.size = *size;
        part.bytes += transfer.bytes;
        if (transfer.bytes.empty() || part.bytes.size() >= limit ||
            offset + part.bytes.size() >= part.size)
            co_return part;
    }
}

}  // namespace ipybox::gateway
