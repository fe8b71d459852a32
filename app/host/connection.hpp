#pragma once
// One connection of `ipybox host`, from its begin to its end.
#include <ipybox/async.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/log.hpp>
#include <ipybox/registry.hpp>
#include <memory>

namespace ipybox::app::host {

// What `serve()` runs on. Its destruction ends what is left, by force.
class Connection {
public:
    // registry: must outlive this.
    Connection(asio::any_io_executor executor, PluginRegistry& registry, Logger logger);
    ~Connection();
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    // Answers what comes from `in` on `out`, which may be the same, until that ends or stop() is
    // called; then ends everything that the client made.
    awaitable<void> serve(UniqueFd in, UniqueFd out);
    // serve() returns soon.
    void stop();
    // A thread reads a file that nobody waits for any more.
    bool still_reads() const;

private:
    struct Impl;
    std::shared_ptr<Impl> impl_;
};

// protocol.json, as it is part of the program.
std::string_view schema();

}  // namespace ipybox::app::host
