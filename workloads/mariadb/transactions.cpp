// Transactions on MariaDB in the manner of sysbench's oltp_read_write, behind the frame that all our services share.
//
//   transactions prepare SOCKET [--rows 100000]
//   transactions verify SOCKET
//   transactions serve SOCKET --port P --threads N
//
// Request key K is one transaction: 10 reads by primary key, 4 range reads of 100 rows (plain, sum, ordered, distinct), an update of an
// indexed column, one of another column, and a delete with an insert of the same row; rows are drawn from K. A deadlock is tried again.
#include <mysql.h>

#include <surefoot/random.hpp>
#include <surefoot/service.hpp>

using namespace surefoot;

namespace {

constexpr std::int64_t range = 100;

struct Deadlock {};

class Session {
public:
    // Waits for a server that is still starting.
    explicit Session(const std::string& socket) : db_(mysql_init(nullptr)) {
        for (int tries = 0; mysql_real_connect(db_, nullptr, "root", nullptr, "", 0, socket.c_str(), 0) == nullptr; tries++) {
            if (tries == 300) throw std::runtime_error(std::string("MariaDB: ") + mysql_error(db_));
            mysql_close(db_);
            db_ = mysql_init(nullptr);
            ::poll(nullptr, 0, 200);
        }
    }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
    ~Session() { mysql_close(db_); }

    // First column of every row; numbers only are put into `sql`.
    std::vector<std::string> query(const std::string& sql) {
        if (mysql_real_query(db_, sql.data(), sql.size()) != 0) {
            // 1213: deadlock, 1205: lock wait timeout.
            if (mysql_errno(db_) == 1213 || mysql_errno(db_) == 1205) throw Deadlock{};
            throw std::runtime_error(std::string("MariaDB: ") + mysql_error(db_));
        }
        std::vector<std::string> column;
        if (MYSQL_RES* result = mysql_store_result(db_)) {
            while (MYSQL_ROW row = mysql_fetch_row(result)) column.emplace_back(row[0] == nullptr ? "" : row[0]);
            mysql_free_result(result);
        }
        return column;
    }

private:
    MYSQL* db_;
};

std::string digits(Random& random, int groups) {
    std::string text;
    for (int i = 0; i < groups; i++) text += (i > 0 ? "-" : "") + std::to_string(10000000000 + random.below(89999999999));
    return text;
}

std::string row_of(std::int64_t id, std::int64_t rows, Random& random) {
    return "(" + std::to_string(id) + "," + std::to_string(random.between(1, rows)) + ",'" + digits(random, 10) + "','" + digits(random, 5) + "')";
}

void prepare(Session& db, std::int64_t rows) {
    db.query("CREATE DATABASE shop");
    db.query("CREATE TABLE shop.t (id INT NOT NULL PRIMARY KEY, k INT NOT NULL, c CHAR(120) NOT NULL, pad CHAR(60) NOT NULL, KEY (k)) ENGINE=InnoDB");
    Random random(101);
    for (std::int64_t from = 1; from <= rows; from += 1000) {
        std::string sql = "INSERT INTO shop.t VALUES ";
        for (std::int64_t id = from; id < std::min(from + 1000, rows + 1); id++) sql += (id > from ? "," : "") + row_of(id, rows, random);
        db.query(sql);
    }
}

// Characters that the transaction read.
std::size_t transaction(Session& db, std::uint64_t key, std::int64_t rows) {
    for (;;) {
        Random random(102, key);
        std::size_t read = 0;
        const auto id = [&] { return random.between(1, rows); };
        const auto between = [&] {
            const std::int64_t from = id();
            return " FROM shop.t WHERE id BETWEEN " + std::to_string(from) + " AND " + std::to_string(from + range - 1);
        };
        const auto ask = [&](const std::string& sql) { for (const auto& value : db.query(sql)) read += value.size(); };
        try {
            db.query("BEGIN");
            for (int i = 0; i < 10; i++) ask("SELECT c FROM shop.t WHERE id=" + std::to_string(id()));
            ask("SELECT c" + between());
            ask("SELECT SUM(k)" + between());
            ask("SELECT c" + between() + " ORDER BY c");
            ask("SELECT DISTINCT c" + between() + " ORDER BY c");
            db.query("UPDATE shop.t SET k=k+1 WHERE id=" + std::to_string(id()));
            db.query("UPDATE shop.t SET c='" + digits(random, 10) + "' WHERE id=" + std::to_string(id()));
            const std::int64_t again = id();
            db.query("DELETE FROM shop.t WHERE id=" + std::to_string(again));
            db.query("INSERT INTO shop.t VALUES " + row_of(again, rows, random));
            db.query("COMMIT");
            return read;
        } catch (const Deadlock&) {
            db.query("ROLLBACK");
        }
    }
}

std::int64_t count(Session& db) { return std::stoll(db.query("SELECT COUNT(*) FROM shop.t").at(0)); }

void verify(const std::string& socket) {
    Session db(socket);
    const std::int64_t rows = count(db);
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 4; t++) {
        threads.emplace_back([&, t] {
            Session mine(socket);
            // 10 + 3 x 100 texts of 119 characters and a sum; ranges at the table's end are shorter.
            for (std::uint64_t i = 0; i < 100; i++) must(transaction(mine, i * 4 + t, rows) > 10 * 119, "a transaction reads what it asks for");
        });
    }
    for (auto& t : threads) t.join();
    must(count(db) == rows && rows > 0, "as many rows as before");
    must(db.query("CHECK TABLE shop.t").size() == 1, "the table is sound");
    must(std::stoll(db.query("SELECT COUNT(*) FROM shop.t WHERE LENGTH(c) <> 119").at(0)) == 0, "every text is whole");
}

}  // namespace

int main(int argc, char** argv) try {
    Arguments arguments(argc, argv);
    const auto words = arguments.words();
    if (words.size() != 2) die(2, "usage: transactions prepare|verify|serve SOCKET [--port P] [--threads N] [--rows N]");
    const std::string what = words[0], socket = words[1];
    mysql_library_init(0, nullptr, nullptr);
    if (what == "prepare") {
        const std::int64_t rows = arguments.number("rows", 100000, 1000, 100000000);
        arguments.done();
        Session db(socket);
        prepare(db, rows);
    } else if (what == "verify") {
        arguments.done();
        verify(socket);
        std::puts("verify: ok");
    } else if (what == "serve") {
        std::int64_t rows;
        {
            Session db(socket);
            rows = count(db);
        }
        serve(arguments, [&](unsigned) {
            return Handler([db = std::make_shared<Session>(socket), rows](std::uint64_t key) { return std::to_string(transaction(*db, key, rows)) + "\n"; });
        });
    } else {
        die(2, "\"" + what + "\": give prepare, verify or serve");
    }
    return 0;
} catch (const std::exception& e) {
    die(1, e.what());
}
