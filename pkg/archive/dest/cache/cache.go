// Package cache keeps what is read of a destination in scratch files for a while, so
// that many who read the same objects at once cost the destination one read each.
// Objects are taken to never change under their key, as artifacts do not: what is read
// by Read, such as manifests, is not kept.
package cache

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/tributary-dev/tributary/pkg/archive/dest"
)

// Cache is a destination whose objects are kept once they have been opened. Close it.
type Cache struct {
	dest.Destination
	dir   string
	bytes int64
	keep  time.Duration

	mu      sync.Mutex
	objects map[string]*object
	held    int64
	closed  bool
}

// object is one that is being read, or is there.
type object struct {
	key  string
	done chan struct{} // closed once file or err is set
	file string
	size int64
	err  error
	open int
	used time.Time
}

// New returns a cache of at most that many bytes, in files of a folder that is there;
// what has not been used for keep is let go.
func New(d dest.Destination, dir string, bytes int64, keep time.Duration) *Cache {
	return &Cache{Destination: d, dir: dir, bytes: bytes, keep: keep, objects: map[string]*object{}}
}

// Open reads an object from an offset on, from the cache once it is there.
func (c *Cache) Open(ctx context.Context, key string, offset int64) (io.ReadCloser, error) {
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return c.Destination.Open(ctx, key, offset)
		}
		c.evict()
		o, mine := c.objects[key], false
		if o == nil {
			o, mine = &object{key: key, done: make(chan struct{})}, true
			c.objects[key] = o
		}
		o.open++
		c.mu.Unlock()
		if mine {
			c.fetch(ctx, o)
		}
		select {
		case <-o.done:
		case <-ctx.Done():
			c.release(o)
			return nil, ctx.Err()
		}
		if o.err == nil {
			f, err := os.Open(o.file)
			if err == nil {
				_, err = f.Seek(offset, io.SeekStart)
			}
			if err != nil {
				c.release(o)
				return nil, err
			}
			return &opened{File: f, release: func() { c.release(o) }}, nil
		}
		c.release(o)
		// What failed for one, such as by its context, need not for another.
		if mine || ctx.Err() != nil || errors.Is(o.err, dest.ErrNotExist) {
			return nil, o.err
		}
	}
}

// fetch reads an object into its file.
func (c *Cache) fetch(ctx context.Context, o *object) {
	f, err := os.CreateTemp(c.dir, "object-")
	if err == nil {
		var r io.ReadCloser
		if r, err = c.Destination.Open(ctx, o.key, 0); err == nil {
			o.size, err = io.Copy(f, r)
			err = errors.Join(err, r.Close())
		}
		err = errors.Join(err, f.Close())
		if o.file = f.Name(); err != nil {
			_ = os.Remove(o.file)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.err = err; err != nil {
		delete(c.objects, o.key)
	} else {
		c.held += o.size
	}
	close(o.done)
}

func (c *Cache) release(o *object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o.open--
	o.used = time.Now()
	if o.open == 0 && c.closed && o.err == nil {
		_ = os.Remove(o.file)
	}
	c.evict()
}

// evict lets go of what has not been used for long, and of the oldest beyond the
// bound. c.mu is held.
func (c *Cache) evict() {
	for {
		var oldest *object
		for _, o := range c.objects {
			if o.open == 0 && (oldest == nil || o.used.Before(oldest.used)) {
				oldest = o
			}
		}
		if oldest == nil || c.held <= c.bytes && time.Since(oldest.used) < c.keep && !c.closed {
			return
		}
		delete(c.objects, oldest.key)
		c.held -= oldest.size
		_ = os.Remove(oldest.file)
	}
}

// Close lets go of what is kept. What is open can still be read.
func (c *Cache) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.evict()
}

type opened struct {
	*os.File
	once    sync.Once
	release func()
}

func (o *opened) Close() error {
	err := o.File.Close()
	o.once.Do(o.release)
	return err
}
