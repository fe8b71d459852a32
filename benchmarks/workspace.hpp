#pragma once
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>
#include <string>

// A fresh directory in which the kernel's user can write; removed at the end.
struct Workspace {
    Workspace() {
        std::string name = "/tmp/ipybox-bench-XXXXXX";
        if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
        path = name;
        if (::geteuid() == 0 && ::chown(name.c_str(), 65534, 65534) != 0)
            throw std::runtime_error("chown failed");
    }
    ~Workspace() {
        std::error_code ignored;
        std::filesystem::remove_all(path, ignored);
    }
    std::filesystem::path path;
};
