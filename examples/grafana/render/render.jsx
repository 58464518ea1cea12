// SPDX-License-Identifier: Apache-2.0
// Draw the dashboard of kvferry.json with Grafana's own components, from the Prometheus that serves this page.
// Grafana's server and its panel plugins are not needed: what those do to a panel of this dashboard is below.

import {
  createTheme, dateTime, FieldConfigOptionsRegistry, applyFieldOverrides, getDisplayValueAlignmentFactors,
  getFieldDisplayValues, rangeUtil, ThemeContext, toDataFrame,
} from '@grafana/data';
import { BarGauge, BigValue, GlobalStyles, InlineField, PanelChrome, TimeSeries, VizRepeater } from '@grafana/ui';
import { createRoot } from 'react-dom/client';
import 'uplot/dist/uPlot.min.css';
import dashboard from '../kvferry.json';

const ROW_HEIGHT = 30; // Grafana's grid: 24 columns, gaps of 8 pixels.
const GAP = 8;
const SCRAPE_INTERVAL = '15s'; // The default of Grafana's data source.
const theme = createTheme({ colors: { mode: 'dark' } });

// ---- what Grafana assumes for a setting that the dashboard leaves out ----

const THRESHOLDS = { mode: 'absolute', steps: [{ value: -Infinity, color: 'green' }, { value: 80, color: 'red' }] };
const LINES = {
  drawStyle: 'line', lineInterpolation: 'linear', lineWidth: 1, fillOpacity: 0, gradientMode: 'none',
  showPoints: 'auto', pointSize: 5, spanNulls: false, axisPlacement: 'auto', axisLabel: '', axisGridShow: true,
  lineStyle: { fill: 'solid' },
  axisBorderShow: false, axisColorMode: 'text', scaleDistribution: { type: 'linear' }, barAlignment: 0,
  thresholdsStyle: { mode: 'off' }, hideFrom: { tooltip: false, viz: false, legend: false },
  'stacking.mode': 'none', 'stacking.group': 'A',
};
const COLOURS = { timeseries: 'palette-classic', stat: 'thresholds', bargauge: 'thresholds' };
const LEGEND = { showLegend: true, displayMode: 'list', placement: 'bottom', calcs: [] };

/** The settings of a field that a panel of `type` has, each with its default value. */
function registry(type) {
  const standard = { unit: null, min: null, max: null, decimals: null, displayName: null, noValue: null,
    mappings: [], color: { mode: COLOURS[type] }, thresholds: THRESHOLDS };
  const setting = (path, value, isCustom) => ({
    id: isCustom ? `custom.${path}` : path, name: path, path, isCustom, shouldApply: () => true,
    process: (given) => given ?? value,
  });
  const custom = type === 'timeseries' ? LINES : {};
  return new FieldConfigOptionsRegistry(() => [
    ...Object.entries(standard).map(([path, value]) => setting(path, value, false)),
    ...Object.entries(custom).map(([path, value]) => setting(path, value, true)),
  ]);
}

// ---- queries ----

async function ask(path, parameters) {
  const answer = await (await fetch(`/api/v1/${path}?${new URLSearchParams(parameters)}`)).json();
  if (answer.status !== 'success') throw new Error(`${answer.error}: ${JSON.stringify(parameters)}`);
  return answer.data;
}

/** The value of each variable, as the data source writes it into an expression if all are chosen. */
async function variables(range) {
  const values = {};
  for (const { name, query, type } of dashboard.templating.list) {
    if (type !== 'query') continue;
    const [, metric, label] = query.match(/^label_values\((.*), (\w+)\)$/);
    const times = { start: range.from.unix(), end: range.to.unix() };
    const found = await ask(`label/${label}/values`, { 'match[]': metric, ...times });
    const escaped = found.map((value) => value.replace(/[\\^$*+?.()|[\]{}]/g, '\\\\$&'));
    values[name] = escaped.length === 1 ? escaped[0] : `(${escaped.join('|')})`;
  }
  return values;
}

/** Data frames of a panel's targets, as the data source makes them. */
async function query(panel, width, range, values) {
  const least = panel.interval ?? SCRAPE_INTERVAL;
  const scrape = rangeUtil.intervalToMs(least);
  const step = rangeUtil.calculateInterval(range, panel.maxDataPoints ?? width, least).intervalMs;
  const aligned = (time) => (Math.floor(time.valueOf() / step) * step) / 1000;
  const times = { start: aligned(range.from), end: aligned(range.to) };
  const seconds = Math.round((range.to - range.from) / 1000);
  const words = { ...values, __range: `${seconds}s`, __range_s: seconds, __interval: `${step / 1000}s`,
    __rate_interval: `${Math.max(step + scrape, 4 * scrape) / 1000}s` };
  const frames = [];
  for (const { expr, instant, legendFormat, refId } of panel.targets) {
    const text = expr.replace(/\$(\w+)/g, (_, name) => words[name]);
    const { result } = instant
      ? await ask('query', { query: text, time: range.to.unix() })
      : await ask('query_range', { query: text, ...times, step: step / 1000 });
    if (!result.length) console.log(`no data in '${panel.title}': ${text}`);
    for (const { metric, value, values: points = [value] } of result) {
      const name = legendFormat.replace(/{{\s*(\w+)\s*}}/g, (_, label) => metric[label] ?? '');
      const config = { displayNameFromDS: name };
      frames.push(toDataFrame({ refId, fields: [
        { name: 'Time', type: 'time', config: { interval: step }, values: points.map(([time]) => time * 1000) },
        { name: 'Value', type: 'number', config, labels: metric, values: points.map((point) => Number(point[1])) },
      ] }));
    }
  }
  return applyFieldOverrides({ data: frames, fieldConfig: panel.fieldConfig, theme, timeZone: 'utc',
    replaceVariables: (word) => word, fieldConfigRegistry: registry(panel.type) });
}

// ---- panels ----

function Content({ panel, frames, width, height, range }) {
  const { options = {} } = panel;
  if (!frames.length) {
    const text = panel.fieldConfig.defaults.noValue ?? 'No data';
    return <div style={{ textAlign: 'center', lineHeight: `${height}px` }}>{text}</div>;
  }
  if (panel.type === 'timeseries') {
    return <TimeSeries frames={frames} width={width} height={height} timeRange={range} timeZone="utc"
      legend={{ ...LEGEND, ...options.legend }} />;
  }
  const values = () => getFieldDisplayValues({ data: frames, reduceOptions: options.reduceOptions, theme,
    fieldConfig: panel.fieldConfig, replaceVariables: (word) => word, timeZone: 'utc' });
  const draw = ({ value, count, ...place }) => panel.type === 'stat'
    ? <BigValue {...options} {...place} value={value.display} count={count} theme={theme} />
    : <BarGauge {...options} {...place} value={value.display} field={value.field} theme={theme} showUnfilled
        display={value.view?.getFieldDisplayProcessor(value.colIndex)} />;
  return <VizRepeater source={frames} getValues={values} renderValue={draw} renderCounter={0}
    width={width} height={height} orientation={options.orientation ?? 'auto'} autoGrid itemSpacing={10}
    minVizHeight={16} maxVizHeight={300} getAlignmentFactors={getDisplayValueAlignmentFactors} />;
}

function Panel({ panel, frames, place, range }) {
  if (panel.type === 'row') {
    return <div style={{ ...place, ...theme.typography.h5, position: 'absolute' }}>⌄ {panel.title}</div>;
  }
  return <div style={{ ...place, position: 'absolute' }}>
    <PanelChrome title={panel.title} description={panel.description} width={place.width} height={place.height}>
      {(width, height) => <Content {...{ panel, frames, width, height, range }} />}
    </PanelChrome>
  </div>;
}

function Dashboard({ panels, range, span }) {
  return <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    <div style={{ padding: GAP * 2, position: 'relative' }}>
      <div style={{ display: 'flex', height: ROW_HEIGHT }}>
        {dashboard.templating.list.map(({ name, label, type }) => <InlineField key={name} label={label}>
          <b style={{ lineHeight: '32px' }}>{type === 'query' ? 'All' : 'Prometheus'}</b>
        </InlineField>)}
        <span style={{ marginLeft: 'auto' }}>Last {span}</span>
      </div>
      <div style={{ position: 'relative', marginTop: GAP * 2 }}>
        {panels.map((each) => <Panel key={each.panel.id} range={range} {...each} />)}
      </div>
    </div>
  </ThemeContext.Provider>;
}

async function main() {
  const span = new URLSearchParams(location.search).get('span') ?? '1h';
  const to = dateTime();
  const from = dateTime(to.valueOf() - rangeUtil.intervalToMs(span));
  const range = { from, to, raw: { from, to } };
  const values = await variables(range);
  const column = (window.innerWidth - 4 * GAP + GAP) / 24;
  const panels = await Promise.all(dashboard.panels.map(async (panel) => {
    const { x, y, w, h } = panel.gridPos;
    const row = ROW_HEIGHT + GAP;
    const place = { left: x * column, top: y * row, width: w * column - GAP, height: h * row - GAP };
    const frames = panel.type === 'row' ? [] : await query(panel, Math.round(place.width), range, values);
    return { panel, place, frames };
  }));
  createRoot(document.getElementById('root')).render(<Dashboard panels={panels} range={range} span={span} />);
}

main();
