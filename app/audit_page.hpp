#pragma once
// A page of sessions, made from an audit log.
#include <cstddef>
#include <string>

namespace ipybox::app {

// Writes to `page`, which only its owner can read, the sessions of `log` whose names match the glob
// `sessions`. Returns how many lines of the log are no records. Throws Error: bad_argument (the log
// cannot be read, no session has such a name), io_error (the page cannot be written).
std::size_t write_audit_page(const std::string& log, const std::string& sessions,
                             const std::string& page);

}  // namespace ipybox::app
