#pragma once
// What kernel backends say when a process ended before it was a kernel.
#include <string>

namespace ipybox::sandbox_kit {

// how: its end, for people. printed: the last that it printed, as it is to follow the sentence.
inline std::string start_failure(const std::string& how, const std::string& printed) {
    if (printed.find("Too many open files") != std::string::npos)
        return "the kernel may open too few files: raise the sandbox's limit open-files" + printed;
    return "the kernel ended while it started (" + how + "); `ipybox doctor` checks what it needs" +
           printed;
}

}  // namespace ipybox::sandbox_kit
