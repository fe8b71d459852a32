#pragma once
// The kernel that the host talks to.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <filesystem>
#include <fstream>
#include <ipybox/detail/terminal_text.hpp>
#include <ipybox/remote_kernel.hpp>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "files.hpp"
#include "link.hpp"

namespace ipybox::gateway {

// As Kernel::next() promises.
awaitable<std::optional<KernelOutput>> next_output(LinkPtr link, Clock::time_point deadline);

// Asks the server whether it still knows the kernel; ends it if not. Other trouble is the
// connection's.
awaitable<void> check_kernel(LinkPtr link);
// Does so while nothing comes, until the kernel ends: a server tells nobody that it culled one.
awaitable<void> watch_kernel(LinkPtr link);
// Has the server end the kernel, if it can be reached. path: path_of() the kernel.
awaitable<void> delete_kernel(ServerPtr server, std::string path);

// A server has it in both cases; what only distant kernels need is not asked of one here.
class GatewayKernel final : public RemoteKernel {
public:
    explicit GatewayKernel(LinkPtr link) : link_(std::move(link)) {}
    ~GatewayKernel() override {
        if (link_->server && !link_->kernel.empty() && !link_->closed && !link_->process)
            asio::co_spawn(link_->executor, delete_kernel(link_->server, path_of(*link_)),
                           asio::detached);
        link_->close();
    }
    GatewayKernel(const GatewayKernel&) = delete;
    GatewayKernel& operator=(const GatewayKernel&) = delete;

    awaitable<void> execute(ExecuteRequest request) override {
        const auto link = link_;
        link->require_usable();
        if (link->execution.busy())
            throw Error(errc::busy,
                        "the kernel runs another execution; take its output to the end first");
        const auto size = request.code.size();
        const auto content = execute_content(std::move(request));
        if (size > longest_request)
            throw Error(errc::bad_argument,
                        "the code is longer than " + std::to_string(longest_request) +
                            " bytes, more than a Jupyter server takes; put data into a file");
        if (Clock::now() - link->heard > link->settings.ping_interval) {
            co_await check_kernel(link);
            link->require_usable();
        }
        const auto id = link->next_id();
        auto message = link->make("shell", "execute_request", id, content);
        // A server would break each connection over which it comes again.
        if (message.content.size() > longest_content)
            throw Error(errc::bad_argument,
                        "the code is longer than " + std::to_string(longest_content) +
                            " bytes once it is written as JSON, more than a Jupyter server takes; "
                            "put data into a file");
        link->execution.begin(id);
        link->request = std::move(message);
        // While the connection is being made again, the request is sent when it is there.
        if (!link->delivery.resuming()) link->send(*link->request);
    }

    awaitable<std::optional<KernelOutput>> next(Clock::time_point deadline) override {
        return next_output(link_, deadline);
    }
    // That of a gateway in a sandbox of this machine.
    std::shared_ptr<SandboxedProcess> process() const override { return link_->process; }

    awaitable<void> interrupt() override {
        const auto link = link_;
        link->require_usable();
        if (link->execution.id().empty()) co_return;
        // ipybox_kernel interrupts this execution or none, even if it has not begun yet.
        json::object content;
        content["msg_id"] = link->execution.id();
        const auto id = link->next_id();
        link->interrupt = id;
        link->send(link->make("control", "interrupt_request", id, content));
        const auto deadline = Clock::now() + std::chrono::seconds(1);
        while (link->interrupt == id && Clock::now() < deadline) {
            co_await link->changed.wait(deadline);
            link->require_usable();
        }
        if (link->interrupt != id) co_return;
        const auto limit = Clock::now() + std::chrono::seconds(5);
        co_await Server::call(link->server, "POST", path_of(*link) + "/interrupt", "{}", limit);
    }

    awaitable<void> refresh() override {
        const auto link = link_;
        link->require_usable();
        const auto files = changed_files(*link);
        const auto deadline = Clock::now() + std::chrono::seconds(30);
        json::object group;
        std::size_t size = 0, ahead = 0;
        Unshipped unshipped{*link, files, files.begin()};
        for (auto& next = unshipped.next; next != files.end(); ++next) {
            const auto& [name, text] = *next;
            if (size + text.size() > piece && !group.empty()) {
                const auto number = ship(*link, group);
                ahead += std::exchange(size, 0);
                if (ahead > ReliableLink::send_window) {
                    co_await arrived(link, number, deadline);
                    ahead = 0;
                }
            }
            group[name] = text;
            size += text.size();
        }
        if (group.empty()) co_return;
        const auto number = ship(*link, group);
        co_await arrived(link, number, deadline);
    }

    awaitable<void> write_file(std::filesystem::path path, std::string bytes,
                               bool overwrite) override {
        return write_distant(link_, std::move(path), std::move(bytes), overwrite);
    }
    awaitable<FilePart> read_file(std::filesystem::path path, std::uint64_t offset,
                                  std::size_t limit) override {
        return read_distant(link_, std::move(path), offset, limit);
    }

    awaitable<void> shutdown() override {
        const auto link = link_;
        if (std::exchange(link->stopping, true)) co_return;
        link->changed.notify();
        if (link->server && !link->kernel.empty() && !link->exited) {
            json::object content;
            content["op"] = "bye";
            link->tell(std::move(content));
            co_await delete_kernel(link->server, path_of(*link));
        }
        if (link->process) {
            link->process->kill_tree();
            const auto deadline = Clock::now() + std::chrono::seconds(5);
            while (!link->closed && !link->exited && Clock::now() < deadline)
                co_await link->changed.wait(deadline);
        }
        link->close();
    }

    bool alive() const noexcept override { return !link_->closed && !link_->failure; }
    std::string id() const override { return link_->kernel; }

    // Files of the directory channels that the kernel has not, or has in another version; by their
    // names relative to the channel. They count as shipped from now on.
    static std::map<std::string, std::string> changed_files(Link& link) {
        std::map<std::string, std::string> changed;
        for (const auto& channel : link.channels) {
            if (channel.kind != Channel::Kind::directory) continue;
            const std::filesystem::recursive_directory_iterator entries(channel.host_path);
            for (const auto& entry : entries) {
                if (!entry.is_regular_file()) continue;
                std::ostringstream text;
                text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
                if (text.view().size() > longest_request) continue;
                const auto name =
                    entry.path().lexically_relative(channel.host_path).generic_string();
                auto& known = link.library[name];
                if (known == text.view()) continue;
                known = detail::repair_utf8(text.view());
                changed[name] = known;
            }
        }
        return changed;
    }

private:
    // Files that do not go after all count as shipped no more.
    struct Unshipped {
        Link& link;
        const std::map<std::string, std::string>& files;
        std::map<std::string, std::string>::const_iterator next;
        ~Unshipped() {
            for (; next != files.end(); ++next) link.library.erase(next->first);
        }
    };
    // Sends files, and empties the group. Returns the operation's number.
    static std::uint64_t ship(Link& link, json::object& group) {
        json::object content;
        content["op"] = "files";
        content["files"] = std::exchange(group, {});
        return link.tell_surely(std::move(content));
    }
    // Waits until the kernel has the operation of that number.
    static awaitable<void> arrived(LinkPtr link, std::uint64_t number, Clock::time_point deadline) {
        while (link->delivery.on_its_way(number)) {
            if (Clock::now() >= deadline)
                throw Error(errc::timed_out,
                            "the kernel did not take the generated files in time; interrupt what "
                            "it runs");
            co_await link->changed.wait(deadline);
            link->require_usable();
        }
    }

    LinkPtr link_;
};

}  // namespace ipybox::gateway
