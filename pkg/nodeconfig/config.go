package nodeconfig

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// Version is the version of both files.
const Version = 1

// Config is node.yaml.
type Config struct {
	Version int `yaml:"version"`
	// Node says who the node is.
	Node Node `yaml:"node"`
	// Listen says where it serves.
	Listen Listen `yaml:"listen"`
	// Storage says where state, logs and cursors are kept.
	Storage Storage `yaml:"storage"`
	// Sources are what it takes data from, at least one, with distinct names.
	Sources []Source `yaml:"sources"`
	// Conflicts are the conflict policies of tables; the last write wins in others.
	Conflicts []Conflict `yaml:"conflicts,omitempty"`
	// Relay makes the node a relay of a tree; nil: it is none.
	Relay *Relay `yaml:"relay,omitempty"`
	// Root is how a root of a tree serves on what it takes in; a node with children that
	// is no relay is one.
	Root *Root `yaml:"root,omitempty"`
	// Parents makes the node a leaf of a tree; nil: it is none.
	Parents *Parents `yaml:"parents,omitempty"`
	// Sinks are what it delivers to, with distinct names.
	Sinks []Sink `yaml:"sinks,omitempty"`
	// Archives are what readers are caught up from when they are behind the journal.
	Archives []Archive `yaml:"archives,omitempty"`
	// Serve says who may read from it, and how that is protected.
	Serve Serve `yaml:"serve,omitempty"`
	// Limits bound what peers can make the node hold.
	Limits Limits `yaml:"limits"`
	// DrainTimeout is how long a node that ends waits for readers to move.
	DrainTimeout time.Duration `yaml:"drainTimeout"`
	// Cursors says how the node keeps its place in what it reads from other nodes: one
	// cursor for each origin's log, or one that is shared by all logs of a peer. A
	// pair of nodes of which one has shared cursors uses those.
	Cursors string `yaml:"cursors,omitempty"`
	// WiringFile is the path of wiring.yaml; needed with a fan-out, mesh or children
	// source, and by a leaf.
	WiringFile string `yaml:"wiringFile,omitempty"`
}

// The kinds of cursors.
const (
	CursorsPerOrigin = "perOrigin"
	CursorsShared    = "shared"
)

// Node is the identity of a node in paths and adverts. All replicas of a node
// share it.
type Node struct {
	ID string `yaml:"id"`
}

// Listen holds addresses as host:port; an empty host is every address.
type Listen struct {
	Replication string `yaml:"replication"`
	HTTP        string `yaml:"http"`
}

// The kinds of storage.
const (
	StorageMemory = "memory" // nothing outlives the process
	StoragePebble = "pebble" // a folder; a restart goes on from it
)

// Storage says where state, logs and cursors are kept.
type Storage struct {
	Type    string  `yaml:"type"`
	Journal Journal `yaml:"journal"`
	// Path is the folder of a pebble store: this node's alone.
	Path string `yaml:"path,omitempty"`
	// Cache is the memory of a pebble store's block cache.
	Cache Cache `yaml:"cache,omitempty"`
	// Tombstones says how long a pebble store remembers deleted rows.
	Tombstones Tombstones `yaml:"tombstones,omitempty"`
	// ScratchPath is the folder for what is spilled, such as parts of large
	// transactions; the store's folder, or the system's, when empty.
	ScratchPath string `yaml:"scratchPath,omitempty"`
}

// Journal bounds the entries kept for readers to resume from, over all logs.
type Journal struct {
	MaxBytes Size `yaml:"maxBytes"`
	// LimitBytes is the limit past which entries go though a durable reader has yet
	// to read them; between the two they are kept for it. Pebble only.
	LimitBytes Size `yaml:"limitBytes,omitempty"`
	// ReaderRetention is how long a durable reader that says nothing is waited
	// for. Pebble only.
	ReaderRetention time.Duration `yaml:"readerRetention,omitempty"`
}

// Cache is memory for what is read often.
type Cache struct {
	MaxBytes Size `yaml:"maxBytes"`
}

// Tombstones are deleted rows that are remembered, for readers that were away.
type Tombstones struct {
	Retention time.Duration `yaml:"retention"`
}

// Source is one source: exactly one of Postgres, Fanout, Ingest, Mesh, Archive and
// Children is set.
type Source struct {
	Name     string         `yaml:"name"`
	Postgres *Postgres      `yaml:"postgres,omitempty"`
	Fanout   *Fanout        `yaml:"fanout,omitempty"`
	Ingest   *Ingest        `yaml:"ingest,omitempty"`
	Mesh     *Mesh          `yaml:"mesh,omitempty"`
	Archive  *ArchiveSource `yaml:"archive,omitempty"`
	Children *Children      `yaml:"children,omitempty"`
}

// Wired reports whether what the source reads from is in the wiring.
func (s *Source) Wired() bool { return s.Fanout != nil || s.Mesh != nil || s.Children != nil }

// SSL modes, as libpq names them.
const (
	SSLDisable    = "disable"
	SSLPrefer     = "prefer"
	SSLRequire    = "require"
	SSLVerifyCA   = "verify-ca"
	SSLVerifyFull = "verify-full"
)

// PostgresServer is a PostgreSQL server, and who logs in there.
type PostgresServer struct {
	// Hosts to try in order.
	Hosts    []Host `yaml:"hosts"`
	Database string `yaml:"database"`
	// User or UserFile: exactly one. PasswordFile may be left out where the
	// server asks for no password. Credentials reads them.
	User         string `yaml:"user,omitempty"`
	UserFile     string `yaml:"userFile,omitempty"`
	PasswordFile string `yaml:"passwordFile,omitempty"`
	SSLMode      string `yaml:"sslMode"`
	// SSLRootCert is the path of the authorities' certificates.
	SSLRootCert string `yaml:"sslRootCert,omitempty"`
	// SSLCert and SSLKey are the paths of the certificate to show and its key.
	SSLCert string `yaml:"sslCert,omitempty"`
	SSLKey  string `yaml:"sslKey,omitempty"`
}

// Postgres is a PostgreSQL source.
type Postgres struct {
	PostgresServer `yaml:",inline"`
	// TargetSessionAttrs says which of the hosts is taken, as libpq names it.
	TargetSessionAttrs string      `yaml:"targetSessionAttrs"`
	Publication        Publication `yaml:"publication"`
	// Slot names the replication slot; a memory store makes it a temporary one.
	Slot   string  `yaml:"slot"`
	Tables []Table `yaml:"tables"`
}

// What a server may be asked to be, as libpq names it.
const (
	TargetAny           = "any"
	TargetReadWrite     = "read-write"
	TargetReadOnly      = "read-only"
	TargetPrimary       = "primary"
	TargetStandby       = "standby"
	TargetPreferStandby = "prefer-standby"
)

// Host is an address of a PostgreSQL server.
type Host struct {
	Host string `yaml:"host"`
	Port int    `yaml:"port"`
}

// Publication is what a PostgreSQL source is read through.
type Publication struct {
	Name string `yaml:"name"`
	// Managed: the node creates it when it is missing and adds tables that it
	// lacks. Otherwise it must be there and hold them.
	Managed bool `yaml:"managed"`
}

// Table names a table.
type Table struct {
	Schema string `yaml:"schema"`
	Name   string `yaml:"name"`
}

// Fanout is a source that is other nodes' fan-out; its parents are in the
// wiring.
type Fanout struct {
	// Comparator is the order of positions of logs that do not say theirs.
	Comparator string `yaml:"comparator"`
	// Ordering is what the upstream promises.
	Ordering string `yaml:"ordering"`
	// Tables to take; all when empty.
	Tables []FanoutTable `yaml:"tables,omitempty"`
	// TLS protects the connections to the parents; nil: plain text.
	TLS *ClientTLS `yaml:"tls,omitempty"`
	// TokenFile is the path of the token that is shown to the parents.
	TokenFile string `yaml:"tokenFile,omitempty"`
	// PauseBuffer bounds what is buffered while the source is paused.
	PauseBuffer PauseBuffer `yaml:"pauseBuffer"`
}

// Mesh is a source that is the other nodes of a mesh; they are in the wiring. The
// node keeps one session with each, and reads each log over the one that serves it
// best. Peers may dial too: they are let in if the wiring names their node ids.
type Mesh struct {
	// Tables to take; all when empty.
	Tables []FanoutTable `yaml:"tables,omitempty"`
	// TLS protects the connections to the peers; nil: plain text.
	TLS *ClientTLS `yaml:"tls,omitempty"`
	// TokenFile is the path of the token that is shown to the peers.
	TokenFile string `yaml:"tokenFile,omitempty"`
	// PauseBuffer bounds what has come and is not applied, in all.
	PauseBuffer PauseBuffer `yaml:"pauseBuffer"`
}

// FanoutTable names a table, and what of it to take.
type FanoutTable struct {
	Schema string `yaml:"schema"`
	Name   string `yaml:"name"`
	// Columns to take beside those of the key; all when empty.
	Columns []string `yaml:"columns,omitempty"`
	// Where says which rows to take: those that meet every condition.
	Where []Condition `yaml:"where,omitempty"`
}

// Operators of a Condition.
const (
	OperatorEqual  = "Equal"
	OperatorIn     = "In"
	OperatorPrefix = "Prefix"
)

// Condition says which rows are wanted by one of their columns.
type Condition struct {
	Column   string   `yaml:"column"`
	Operator string   `yaml:"operator"`
	Values   []string `yaml:"values"`
}

// ClientTLS says whom to trust and what certificate to show, as paths of files.
type ClientTLS struct {
	// CAFile holds the authorities' certificates; the system's when empty.
	CAFile   string `yaml:"caFile,omitempty"`
	CertFile string `yaml:"certFile,omitempty"`
	KeyFile  string `yaml:"keyFile,omitempty"`
	// ServerName that the other side's certificate must have; the host of the
	// address when empty.
	ServerName string `yaml:"serverName,omitempty"`
}

// Serve says who may read from the node, and how that is protected.
type Serve struct {
	// TLS of the replication port; nil: plain text.
	TLS *ServeTLS `yaml:"tls,omitempty"`
	// TokensDir is the path of a folder with a file for each reader that may show
	// a token: its name is the reader's, its content the token.
	TokensDir string `yaml:"tokensDir,omitempty"`
	// Permissions say who may read what; everybody everything when empty.
	Permissions []Permission `yaml:"permissions,omitempty"`
}

// ServeTLS protects the replication port. The files are read again when they
// change.
type ServeTLS struct {
	CertFile string `yaml:"certFile"`
	KeyFile  string `yaml:"keyFile"`
	// ClientCAFile holds the authorities of readers' certificates. With it a reader
	// must show a certificate, or a token where there are tokens.
	ClientCAFile string `yaml:"clientCAFile,omitempty"`
}

// Permission lets a reader read tables, and write tables of the ingest source.
type Permission struct {
	// Reader is the name of a reader, or * for every one that is let in.
	Reader string `yaml:"reader"`
	// Tables that it may read; all when empty.
	Tables []Table `yaml:"tables,omitempty"`
	// Writes are the tables that it may write; none when empty.
	Writes []Table `yaml:"writes,omitempty"`
	// Nodes are the ids of nodes as which it may be read from when it has dialled,
	// beside the one of its own name.
	Nodes []string `yaml:"nodes,omitempty"`
}

// PauseBuffer bounds what is buffered while a source is paused.
type PauseBuffer struct {
	MaxBytes Size `yaml:"maxBytes"`
}

// Limits bound what peers can make the node hold.
type Limits struct {
	// MaxReaders is how many sessions may be open.
	MaxReaders int `yaml:"maxReaders"`
	// MaxPeerReaders is how many of them may be of one identity, or of one address
	// where nobody says who they are; MaxReaders when it is not set.
	MaxPeerReaders int `yaml:"maxPeerReaders"`
	// AdmitRate is how many sessions may begin in a second, and twice as many at
	// once.
	AdmitRate int `yaml:"admitRate"`
	// MaxChannels is how many channels one session may open.
	MaxChannels int `yaml:"maxChannels"`
	// HandshakeTimeout is how long a peer may take to say who it is.
	HandshakeTimeout time.Duration `yaml:"handshakeTimeout"`
}

// Defaults.
const (
	DefaultReplicationPort  = 7400
	DefaultHTTPPort         = 8080
	DefaultPostgresPort     = 5432
	DefaultJournalBytes     = 256 << 20
	DefaultPauseBufferBytes = 64 << 20

	// Of a pebble store.
	DefaultDiskJournalBytes   = 1 << 30
	DefaultReaderRetention    = 24 * time.Hour
	DefaultCacheBytes         = 64 << 20
	DefaultTombstoneRetention = 24 * time.Hour

	DefaultMaxReaders       = 4096
	DefaultAdmitRate        = 500
	DefaultMaxChannels      = 1024
	DefaultHandshakeTimeout = 10 * time.Second
	DefaultDrainTimeout     = 20 * time.Second
	DefaultComparator       = "lsn"
	DefaultOrdering         = "Total"
)

// SetDefaults fills in every value that is not set and has a default. Parse has
// done so already.
func (c *Config) SetDefaults() {
	def(&c.Listen.Replication, fmt.Sprintf(":%d", DefaultReplicationPort))
	def(&c.Listen.HTTP, fmt.Sprintf(":%d", DefaultHTTPPort))
	def(&c.Storage.Type, StorageMemory)
	def(&c.Cursors, CursorsPerOrigin)
	if st := &c.Storage; st.Type == StoragePebble {
		def(&st.Journal.MaxBytes, DefaultDiskJournalBytes)
		def(&st.Journal.LimitBytes, 4*st.Journal.MaxBytes)
		def(&st.Journal.ReaderRetention, DefaultReaderRetention)
		def(&st.Cache.MaxBytes, DefaultCacheBytes)
		def(&st.Tombstones.Retention, DefaultTombstoneRetention)
	} else {
		def(&st.Journal.MaxBytes, DefaultJournalBytes)
	}
	def(&c.Limits.MaxReaders, DefaultMaxReaders)
	def(&c.Limits.MaxPeerReaders, c.Limits.MaxReaders)
	def(&c.Limits.AdmitRate, DefaultAdmitRate)
	def(&c.Limits.MaxChannels, DefaultMaxChannels)
	def(&c.Limits.HandshakeTimeout, DefaultHandshakeTimeout)
	def(&c.DrainTimeout, DefaultDrainTimeout)
	for i := range c.Sources {
		if p := c.Sources[i].Postgres; p != nil {
			p.PostgresServer.setDefaults()
			def(&p.TargetSessionAttrs, TargetReadWrite)
		}
		if f := c.Sources[i].Fanout; f != nil {
			def(&f.Comparator, DefaultComparator)
			def(&f.Ordering, DefaultOrdering)
			def(&f.PauseBuffer.MaxBytes, DefaultPauseBufferBytes)
		}
		if g := c.Sources[i].Ingest; g != nil {
			g.setDefaults()
		}
		if a := c.Sources[i].Archive; a != nil {
			a.setDefaults()
		}
	}
	for i := range c.Sources {
		if m := c.Sources[i].Mesh; m != nil {
			def(&m.PauseBuffer.MaxBytes, DefaultPauseBufferBytes)
		}
	}
	c.setTreeDefaults()
	for i := range c.Sinks {
		c.Sinks[i].setDefaults()
	}
	for i := range c.Archives {
		c.Archives[i].setDefaults(i)
	}
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func (s *PostgresServer) setDefaults() {
	for i := range s.Hosts {
		def(&s.Hosts[i].Port, DefaultPostgresPort)
	}
	def(&s.SSLMode, SSLPrefer)
}

// Credentials reads the user and the password from where the configuration
// says. Call it for each connection, so that a changed Secret takes effect
// without a restart.
func (s *PostgresServer) Credentials() (user, password string, err error) {
	user = s.User
	if s.UserFile != "" {
		if user, err = readSecret("user", s.UserFile); err != nil {
			return "", "", err
		}
	}
	if s.PasswordFile != "" {
		if password, err = readSecret("password", s.PasswordFile); err != nil {
			return "", "", err
		}
	}
	return user, password, nil
}

func readSecret(what, path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("cannot read the %s of the database: %w: mount the Secret that holds it there, or name another file", what, err)
	}
	return strings.TrimRight(string(b), "\r\n"), nil
}
