#include "request.hpp"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "descriptors.hpp"

namespace ipybox::launcher {
namespace {

constexpr uint64_t largest = 16u << 20;  // more than Linux takes for a program
constexpr uint32_t largest_number = 1u << 20;

// Reads what hostile hands wrote, and never past its end.
class Cursor {
public:
    Cursor(char* data, uint64_t size) : at_(data), left_(size) {}
    // Null: there is not that much.
    char* take(uint64_t size) {
        if (size > left_) return nullptr;
        char* const taken = at_;
        at_ += size;
        left_ -= size;
        return taken;
    }
    bool number(uint32_t& value) {
        const char* const bytes = take(sizeof value);
        if (bytes != nullptr) memcpy(&value, bytes, sizeof value);
        return bytes != nullptr;
    }
    // `count` of them, as execve takes them. Null: they are wrong.
    char** strings(uint32_t count) {
        if (count > left_) return nullptr;
        auto** const list = static_cast<char**>(calloc(count + 1u, sizeof(char*)));
        for (uint32_t i = 0; list != nullptr && i < count; ++i) {
            uint32_t size = 0;
            if (!number(size)) return nullptr;
            list[i] = take(uint64_t{size} + 1);
            if (list[i] == nullptr || list[i][size] != '\0' || strlen(list[i]) != size)
                return nullptr;
        }
        return list;
    }

private:
    char* at_;
    uint64_t left_;
};

}  // namespace

bool refuse(Refusal& refusal, int error, const char* what) {
    refusal.error = error;
    snprintf(refusal.reason, sizeof refusal.reason, "%s", what);
    return false;
}

bool is_sealed(int file) {
    constexpr int all = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK;
    const int seals = fcntl(file, F_GET_SEALS);
    return seals >= 0 && (seals & all) == all;
}

bool Request::receive_descriptors(int link, int& file, Refusal& refusal) {
    constexpr int fixed = 3;
    int files[fixed + most_descriptors];
    const Received received = ipybox::launcher::receive_descriptors(
        link, 0, files, static_cast<int>(fixed + most_descriptors));
    if (received.bytes <= 0) return refuse(refusal, 0, "");
    // When there is no room for all, Linux hands out fewer.
    if (received.cut || received.count == 0)
        return refuse(refusal, EMFILE, "descriptors of the program are missing");
    received_ = received.count - fixed;
    if (received_ < 0) return refuse(refusal, EBADMSG, "descriptors of the program are missing");
    memcpy(descriptors, files + fixed, static_cast<size_t>(received_) * sizeof(int));
    file = files[0];
    directory = files[1];
    program = files[2];
    return true;
}

bool Request::parse(char* data, uint64_t size) {
    Cursor cursor(data, size);
    const char* const begin = cursor.take(sizeof head);
    if (begin == nullptr) return false;
    memcpy(&head, begin, sizeof head);
    if (head.magic != request_magic || head.limits > 16 ||
        head.descriptors != static_cast<uint32_t>(received_) || head.arguments == 0)
        return false;
    // The head's size keeps them aligned.
    static_assert(sizeof head % alignof(LimitWanted) == 0);
    limits = reinterpret_cast<const LimitWanted*>(cursor.take(head.limits * sizeof(LimitWanted)));
    if (limits == nullptr) return false;
    for (uint32_t i = 0; i < head.descriptors; ++i) {
        if (!cursor.number(numbers[i]) || numbers[i] >= largest_number) return false;
        if (i > 0 && numbers[i] <= numbers[i - 1]) return false;
    }
    arguments = cursor.strings(head.arguments);
    variables = arguments != nullptr ? cursor.strings(head.variables) : nullptr;
    return variables != nullptr;
}

bool Request::receive(int link, Refusal& refusal) {
    int file = -1;
    if (!receive_descriptors(link, file, refusal)) return false;
    struct stat status{};
    if (!is_sealed(file) || fstat(file, &status) != 0 || status.st_size < 0 ||
        static_cast<uint64_t>(status.st_size) > largest)
        return refuse(refusal, EBADMSG, "the request is not sealed, or too large");
    const auto size = static_cast<uint64_t>(status.st_size);
    auto* const data = static_cast<char*>(malloc(size + 1));
    if (data == nullptr) return refuse(refusal, ENOMEM, "no memory for the request");
    for (uint64_t at = 0; at < size;) {
        const ssize_t count = pread(file, data + at, size - at, static_cast<off_t>(at));
        if (count <= 0) return refuse(refusal, EBADMSG, "the request cannot be read");
        at += static_cast<uint64_t>(count);
    }
    close(file);
    return parse(data, size) || refuse(refusal, EBADMSG, "the request is malformed");
}

}  // namespace ipybox::launcher
