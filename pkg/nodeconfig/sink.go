package nodeconfig

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

// What becomes of an entry that a sink's target rejects.
const (
	RejectHold       = "Hold"       // the log stays where it is, and it is tried again
	RejectDeadLetter = "DeadLetter" // it is put aside, durably, and the sink goes on
)

// Sink is one sink: exactly one of Postgres and HTTP is set.
type Sink struct {
	Name     string        `yaml:"name"`
	Postgres *PostgresSink `yaml:"postgres,omitempty"`
	HTTP     *HTTPSink     `yaml:"http,omitempty"`
	// Tables to deliver; all when empty.
	Tables   []Table `yaml:"tables,omitempty"`
	OnReject string  `yaml:"onReject"`
	// DeadLetters bounds what is put aside; at the bound the sink holds.
	DeadLetters DeadLetters `yaml:"deadLetters,omitempty"`
}

// DeadLetters bounds the entries that a sink puts aside.
type DeadLetters struct {
	MaxEntries int `yaml:"maxEntries"`
}

// PostgresSink is a database that tables are written to: the first of its hosts
// that accepts writes.
type PostgresSink struct {
	PostgresServer `yaml:",inline"`
	// Schema to write all tables to; each table's own when empty.
	Schema string `yaml:"schema,omitempty"`
	// CreateTables: the node creates tables and columns that are missing.
	CreateTables bool `yaml:"createTables,omitempty"`
	// Provenance: each table with a key has columns for the origin, the epoch, the
	// version and the time of the write that a row is of.
	Provenance bool `yaml:"provenance,omitempty"`
}

// HTTPSink is an address that batches of changes are posted to.
type HTTPSink struct {
	URL string `yaml:"url"`
	// TokenFile is the path of the bearer token to send.
	TokenFile string `yaml:"tokenFile,omitempty"`
	// TLS says whom to trust and what certificate to show.
	TLS *ClientTLS `yaml:"tls,omitempty"`
	// Headers are sent with each request.
	Headers []HTTPHeader `yaml:"headers,omitempty"`
	// Gzip compresses what is sent.
	Gzip bool `yaml:"gzip,omitempty"`
	// Timeout of one request.
	Timeout time.Duration `yaml:"timeout"`
	// MaxBatchBytes is about how much one request holds.
	MaxBatchBytes Size `yaml:"maxBatchBytes"`
}

// HTTPHeader is a header; its value is given, or in a file.
type HTTPHeader struct {
	Name      string `yaml:"name"`
	Value     string `yaml:"value,omitempty"`
	ValueFile string `yaml:"valueFile,omitempty"`
}

// Defaults of sinks.
const (
	DefaultMaxDeadLetters = 1000
	DefaultHTTPTimeout    = 30 * time.Second
	DefaultMaxBatchBytes  = 1 << 20
)

func (s *Sink) setDefaults() {
	def(&s.OnReject, RejectHold)
	def(&s.DeadLetters.MaxEntries, DefaultMaxDeadLetters)
	if h := s.HTTP; h != nil {
		def(&h.Timeout, DefaultHTTPTimeout)
		def(&h.MaxBatchBytes, DefaultMaxBatchBytes)
	}
	if p := s.Postgres; p != nil {
		p.PostgresServer.setDefaults()
	}
}

func (s *Sink) check(p *problems, path, storage string) {
	pattern(p, path+".name", s.Name, sourceName, "start with a lower case letter and go on with lower case letters, digits and dashes, at most 40")
	switch {
	case (s.Postgres == nil) == (s.HTTP == nil):
		p.at(path, "must have exactly one of postgres and http", "say where the sink delivers")
	case s.Postgres != nil:
		s.Postgres.check(p, path+".postgres")
	default:
		s.HTTP.check(p, path+".http")
	}
	count(p, path+".tables", len(s.Tables), 0, maxTables)
	tables(p, path+".tables", s.Tables)
	oneOf(p, path+".onReject", s.OnReject, []string{RejectHold, RejectDeadLetter})
	between(p, path+".deadLetters.maxEntries", s.DeadLetters.MaxEntries, 1, 100_000, "from 1 to 100000")
	if s.OnReject == RejectDeadLetter && storage != StoragePebble {
		p.at(path+".onReject", "is DeadLetter, and the store is in memory", "set storage.type to pebble, so that what is put aside outlives the node, or use Hold")
	}
}

func (s *PostgresSink) check(p *problems, path string) {
	s.PostgresServer.check(p, path)
	text(p, path+".schema", s.Schema, 0, 63)
}

func (s *HTTPSink) check(p *problems, path string) {
	text(p, path+".url", s.URL, 1, 2048)
	if u, err := url.Parse(s.URL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		p.at(path+".url", fmt.Sprintf("must not be %q", s.URL), "write an address that starts with https:// or http://")
	}
	text(p, path+".tokenFile", s.TokenFile, 0, 4096)
	s.TLS.check(p, path+".tls")
	between(p, path+".timeout", s.Timeout, 100*time.Millisecond, 10*time.Minute, "from 100ms to 10m")
	between(p, path+".maxBatchBytes", s.MaxBatchBytes, 1<<10, 64<<20, "from 1Ki to 64Mi")
	count(p, path+".headers", len(s.Headers), 0, maxHeaders)
	unique := uniqueness(p)
	for i, h := range s.Headers {
		at := fmt.Sprintf("%s.headers[%d]", path, i)
		pattern(p, at+".name", h.Name, headerName, "use letters, digits and dashes, at most 100")
		unique(at+".name", strings.ToLower(h.Name))
		if slices.Contains(ownHeaders, strings.ToLower(h.Name)) {
			p.at(at+".name", fmt.Sprintf("must not be %q", h.Name), "the sink sets it itself; tokenFile is for a bearer token")
		}
		if (h.Value == "") == (h.ValueFile == "") {
			p.at(at, "must have exactly one of value and valueFile", "say what the header holds")
		}
		text(p, at+".value", h.Value, 0, 4096)
		text(p, at+".valueFile", h.ValueFile, 0, 4096)
	}
}

const maxHeaders = 32

var (
	headerName = regexp.MustCompile("^[A-Za-z0-9-]{1,100}$")
	// ownHeaders are those that the sink sets itself.
	ownHeaders = []string{"authorization", "content-encoding", "content-length", "content-type", "host", "idempotency-key"}
)

func (t *ClientTLS) check(p *problems, path string) {
	if t == nil {
		return
	}
	text(p, path+".caFile", t.CAFile, 0, 4096)
	pair(p, path, "certFile", t.CertFile, "keyFile", t.KeyFile)
	text(p, path+".serverName", t.ServerName, 0, 253)
}

func (s *Serve) check(p *problems) {
	const path = "serve"
	if t := s.TLS; t != nil {
		text(p, path+".tls.certFile", t.CertFile, 1, 4096)
		text(p, path+".tls.keyFile", t.KeyFile, 1, 4096)
		text(p, path+".tls.clientCAFile", t.ClientCAFile, 0, 4096)
	}
	text(p, path+".tokensDir", s.TokensDir, 0, 4096)
	if s.TokensDir != "" && s.TLS == nil {
		p.at(path+".tokensDir", "is set, and serve.tls is not", "set serve.tls: a token sent in plain text is no secret")
	}
	count(p, path+".permissions", len(s.Permissions), 0, maxPermissions)
	if len(s.Permissions) > 0 && s.TokensDir == "" && (s.TLS == nil || s.TLS.ClientCAFile == "") {
		p.at(path+".permissions", "need readers that say who they are", "set serve.tokensDir or serve.tls.clientCAFile")
	}
	unique := uniqueness(p)
	for i, q := range s.Permissions {
		at := fmt.Sprintf("%s.permissions[%d]", path, i)
		text(p, at+".reader", q.Reader, 1, 253)
		unique(at+".reader", q.Reader)
		count(p, at+".tables", len(q.Tables), 0, maxTables)
		tables(p, at+".tables", q.Tables)
		count(p, at+".writes", len(q.Writes), 0, maxTables)
		tables(p, at+".writes", q.Writes)
	}
}

// pair checks the paths of a certificate and its key: both or none.
func pair(p *problems, path, certName, cert, keyName, key string) {
	text(p, path+"."+certName, cert, 0, 4096)
	text(p, path+"."+keyName, key, 0, 4096)
	if (cert == "") != (key == "") {
		p.at(path, "has one of "+certName+" and "+keyName, "give both: a certificate is of no use without its key")
	}
}

func (s *PostgresServer) check(p *problems, path string) {
	count(p, path+".hosts", len(s.Hosts), 1, maxHosts)
	for i, h := range s.Hosts {
		at := fmt.Sprintf("%s.hosts[%d]", path, i)
		text(p, at+".host", h.Host, 1, 253)
		between(p, at+".port", h.Port, 1, 65535, "from 1 to 65535")
	}
	text(p, path+".database", s.Database, 1, 63)
	if (s.User == "") == (s.UserFile == "") {
		p.at(path, "must have exactly one of user and userFile", "say who logs in")
	}
	text(p, path+".user", s.User, 0, 63)
	text(p, path+".userFile", s.UserFile, 0, 4096)
	text(p, path+".passwordFile", s.PasswordFile, 0, 4096)
	oneOf(p, path+".sslMode", s.SSLMode, SSLModes)
	text(p, path+".sslRootCert", s.SSLRootCert, 0, 4096)
	if strings.HasPrefix(s.SSLMode, "verify-") && s.SSLRootCert == "" {
		p.at(path+".sslRootCert", "is missing", "sslMode "+s.SSLMode+" needs the file with the authority's certificate")
	}
	pair(p, path, "sslCert", s.SSLCert, "sslKey", s.SSLKey)
}
