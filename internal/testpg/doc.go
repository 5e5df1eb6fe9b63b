// Package testpg runs real PostgreSQL servers for tests, benchmarks and demos.
//
// A server is a copy of a template data directory (initdb runs once per
// version and is cached), with a Unix socket directory and a TCP port of its
// own and logical decoding on. Tests share one server per package (Main) and
// take a database each (NewDB):
//
//	func TestMain(m *testing.M) { os.Exit(testpg.Main(m, testpg.Options{})) }
//
//	func TestX(t *testing.T) {
//		db := testpg.NewDB(t)
//		db.Exec(t, `CREATE TABLE t (id int PRIMARY KEY)`)
//		// connect to db.ConnString ...
//	}
//
// Programs use Run and Close.
//
// Nothing outlives the process: the postmaster is told to stop by the kernel
// when its parent dies (Linux), and a directory left by a killed process is
// removed by the next Run. fsync is off unless asked for, so what a crash of
// the machine leaves is not examined here; a crash of the server (Kill) is.
//
// PostgreSQL refuses to run as root. Under root the server runs as the user
// postgres, or else nobody.
package testpg
